"""The relay of an outbox: fires what transactions of the application have stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory.errors import PurgatoryClosedError, SignalsError
from purgatory.group_commit import cancel_until_done
from purgatory.job_errors import StoreError
from purgatory.jobs.stores.protocol import Outbox, StoredFire, TakenFires
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

BATCH: Final = 100
# Own fires are announced; those of other processes are looked for.
POLL_S: Final = 2.0
# A fire of another process that is still there after this time has been left behind.
TAKEOVER_MS: Final = 5_000
# What was read longer ago may have been fired, and forgotten, by another relay.
_MAX_AGE_MS: Final = 5_000
_STOP_S: Final = 1.0
# After about two seconds.
_LOCKED_ATTEMPTS: Final = 6
_RETRY: Final = RetryPolicy(first_ms=50, max_ms=2_000)

FireAll = Callable[[Sequence[StoredFire]], Awaitable[None]]


class OutboxRelay:
    """Fires what this purgatory has stored, in order, and what ended processes have left.

    A fire that another transaction has locked, or a job on whose key, waits for that, and so do
    later fires on this key; those on other keys do not.

    A fire leaves the outbox in the transaction that decides the jobs on its key, so one relay has
    it. Signals in memory follow that transaction: a crash in between loses them as it loses all
    others. Shared signals precede it, under the name of the fire, so that a repeat adds nothing.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        origin: str,
        fire_all: FireAll,
        is_shared: bool,
        on_cancelled: Callable[[Sequence[str]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Prepare. `on_cancelled` is given the ids of jobs that a fire has ended."""
        self._outbox = outbox
        self.origin = origin
        self._fire_all = fire_all
        self._is_shared = is_shared
        self._on_cancelled = on_cancelled
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._is_failing = False
        # {number of a fire of another process: when it was first seen}
        self._seen: dict[int, int] = {}
        # Origins of which fires were left behind: the others need not be waited for.
        self._ended: set[str] = set()
        # Own and other fires that are in the log of shared signals, and in the outbox still.
        self._appended: dict[bool, set[int]] = {True: set(), False: set()}

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="purgatory-outbox")

    def wake(self) -> None:
        """Look for own fires: a transaction has been committed."""
        self._woken.set()

    async def stop(self) -> None:
        """Fire what is stored now, if that takes less than a second, and end. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._is_stopping = True
        self._woken.set()
        await asyncio.wait([task], timeout=_STOP_S)
        await cancel_until_done(task, _STOP_S)

    async def _run(self) -> None:
        attempt = 0
        is_poll = True
        while True:
            self._woken.clear()
            is_stopping = self._is_stopping
            pause_s = POLL_S
            try:
                is_locked = await self._relay_all(is_own=True)
                if is_poll and not is_stopping:
                    is_locked = await self._relay_all(is_own=False) or is_locked
            except (StoreError, SignalsError) as exc:
                attempt += 1
                self._note_failure(exc)
                if is_stopping:
                    return
                await asyncio.sleep(_RETRY.delay_s(attempt))
                continue
            except PurgatoryClosedError:
                return
            except Exception:
                logger.exception("the outbox was not emptied", extra={"action": "outbox-failed"})
                await asyncio.sleep(POLL_S)
            else:
                self._note_success()
                attempt = attempt + 1 if is_locked else 0
                if is_locked:
                    self._note_locked(attempt)
                    pause_s = _RETRY.delay_s(attempt)
            if is_stopping:
                return
            is_poll = not await self._wait(pause_s)

    async def _wait(self, pause_s: float) -> bool:
        """Return True once it is woken, False after `pause_s`."""
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    async def _relay_all(self, *, is_own: bool) -> bool:
        """Fire what is stored; return True iff some of it waits for another transaction."""
        after = 0
        waiting: set[str] = set()
        numbers: set[int] = set()
        seen: dict[int, int] = {}
        while True:
            read_ns = self._clock.now_ns()
            fires = await self._outbox.stored_fires(
                self.origin, is_own=is_own, after=after, limit=BATCH
            )
            numbers.update(fire.number for fire in fires)
            # Those on other keys go on.
            ready = [fire for fire in fires if fire.key not in waiting]
            is_last = len(fires) < BATCH
            if not is_own:
                left = self._left_behind(ready, read_ns, seen)
                # Behind those that their own process may fire yet, there are later ones only.
                is_last = is_last or len(left) < len(ready)
                ready = left
            is_cut = False
            if ready:
                result = await self._relay(ready, read_ns)
                waiting |= result.waiting
                is_cut = result.is_cut
            if not is_cut:
                if is_last:
                    break
                after = fires[-1].number
        self._appended[is_own] &= numbers
        if not is_own:
            self._seen = seen
        return bool(waiting)

    def _left_behind(
        self, fires: Sequence[StoredFire], now_ns: int, seen: dict[int, int]
    ) -> list[StoredFire]:
        """Return the fires whose processes seem to have ended; note in `seen` all of them."""
        for fire in fires:
            seen[fire.number] = self._seen.get(fire.number, now_ns)
        before_ns = now_ns - TAKEOVER_MS * NS_PER_MS
        return [
            fire for fire in fires if fire.origin in self._ended or seen[fire.number] <= before_ns
        ]

    async def _relay(self, fires: Sequence[StoredFire], read_ns: int) -> TakenFires:
        if self._is_shared:
            if self._clock.now_ns() - read_ns > _MAX_AGE_MS * NS_PER_MS:
                return TakenFires(is_cut=True)
            await self._append(fires, self._appended[fires[0].origin == self.origin])
        result = await self._outbox.take_fires(fires)
        gone = [each.fire for each in result.taken if not each.jobs.has_more]
        if not self._is_shared:
            await self._fire_all(gone)
        self._note_ended(gone)
        cancelled = [job_id for each in result.taken for job_id in each.jobs.cancelled]
        if cancelled:
            await self._on_cancelled(cancelled)
        return result

    async def _append(self, fires: Sequence[StoredFire], appended: set[int]) -> None:
        # One that waits for a lock stays: longer, perhaps, than the log knows its name.
        new = [fire for fire in fires if fire.number not in appended]
        if new:
            await self._fire_all(new)
            appended.update(fire.number for fire in new)

    def _note_ended(self, fires: Sequence[StoredFire]) -> None:
        origins = {fire.origin for fire in fires} - {self.origin}
        if origins:
            self._ended |= origins
            logger.warning(
                "%d fires of processes that ended were found in the outbox, and were fired",
                len(fires),
                extra={"action": "outbox-takeover"},
            )

    def _note_locked(self, attempt: int) -> None:
        if attempt == _LOCKED_ATTEMPTS:
            logger.warning(
                "fires wait in the outbox, as another transaction keeps them or jobs on their keys "
                "locked: see pg_locks for whose; those on other keys go on",
                extra={"action": "outbox-locked"},
            )

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.error(
                "fires that are stored in the outbox wait (%s): it is tried again until it works",
                error,
                extra={"action": "outbox-waits"},
            )

    def _note_success(self) -> None:
        if self._is_failing:
            self._is_failing = False
            logger.info("the outbox is emptied again", extra={"action": "outbox-works"})
