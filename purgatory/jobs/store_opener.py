"""Opening of the job store, and notice of other processes on it that share no signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory.background import cancel_until_done
from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import StoreError, StoreNotReadyError, StoreUnavailableError
from purgatory.jobs.stores.protocol import JobStore, ListsWorkers
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

RETRY_POLICY: Final = RetryPolicy(first_ms=100, max_ms=5_000)


class StoreOpener:
    """Opens a store in the background, and keeps trying while it cannot be opened.

    Only an error of the first attempt reaches the caller, unless it says that the store is out of
    reach: an operator who starts the process can correct it. Later errors are logged.
    """

    def __init__(
        self,
        store: JobStore,
        on_open: Callable[[], Awaitable[None]],
        *,
        policy: RetryPolicy = RETRY_POLICY,
    ) -> None:
        """Prepare; `on_open` is awaited once the store is open, and belongs to opening it."""
        self._store = store
        self._on_open = on_open
        self._policy = policy
        self._task: asyncio.Task[None] | None = None
        self._first_attempt: asyncio.Future[None] | None = None
        self.error: str | None = "it is being opened"
        """Why the store is not open; None once it is."""

    @property
    def is_open(self) -> bool:
        """True iff the store was opened, and not closed since."""
        return self.error is None

    def begin(self) -> None:
        """Begin to open the store, on the running event loop."""
        self._first_attempt = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._open())

    async def wait(self) -> None:
        """Return once the store is open, or is out of reach and will be tried again.

        Raises StoreNotReadyError and other errors of the store that prevent opening it;
        PurgatoryClosedError if stopped before.
        """
        assert self._first_attempt is not None
        try:
            await asyncio.shield(self._first_attempt)
        except StoreNotReadyError as exc:
            # Its text says what to do, and thirty lines of the store's own calls would hide it.
            raise exc.with_traceback(None)  # noqa: B904 - it is the same error

    async def stop(self) -> None:
        """Stop trying. Idempotent."""
        await cancel_until_done(self._task)
        if self._first_attempt is not None and not self._first_attempt.done():
            self._fail_first_attempt(
                PurgatoryClosedError("the purgatory was drained before its job store was open")
            )

    def note_closed(self) -> None:
        """Note that the store is being closed."""
        self.error = "it is closed"

    async def _open(self) -> None:
        assert self._first_attempt is not None
        try:
            await self._reach()
            await self._on_open()
        except Exception as exc:
            self.error = str(exc)
            if self._first_attempt.done():
                logger.exception("the job store cannot be opened", extra={"action": "no-store"})
            else:
                self._fail_first_attempt(exc)
            return
        self.error = None
        if not self._first_attempt.done():
            self._first_attempt.set_result(None)

    async def _reach(self) -> None:
        attempt = 0
        while True:
            try:
                await self._store.open()
            except StoreError as exc:
                self._note_failure(exc)
            else:
                return
            attempt += 1
            await asyncio.sleep(self._policy.delay_s(attempt))

    def _note_failure(self, error: StoreError) -> None:
        assert self._first_attempt is not None
        is_new = error.detail != self.error
        self.error = error.detail
        if not self._first_attempt.done():
            if not isinstance(error, StoreUnavailableError):
                raise error
            self._first_attempt.set_result(None)
        if is_new:
            logger.error(
                "the job store cannot be opened (%s): it is tried again until it can",
                error.detail,
                extra={"action": "store-lost"},
            )

    def _fail_first_attempt(self, error: Exception) -> None:
        assert self._first_attempt is not None
        self._first_attempt.set_exception(error)
        # Retrieved here: no task may be waiting for it, and then `error` shows it.
        self._first_attempt.exception()


# While another process is at work. Alone, the pause doubles with each look, up to the maximum: one
# that starts later looks as often at first, and notices this one.
LOOK_EVERY_S: Final = 60.0
MAX_PAUSE_S: Final = 3_600.0
# Jobs of one look.
LOOKED_AT: Final = 100
MAX_WORKERS: Final = 100
_LEAST_OVERLAP_MS: Final = 60_000


def overlap_ms(*, lease_ms: int, grace_ms: int) -> int:
    """Return for how long a process that is replaced may be seen beside the one that replaces it.

    In a rolling deploy both work for a while; one that was killed has its jobs until their leases
    run out, and one that drains until its handlers have ended.
    """
    return max(_LEAST_OVERLAP_MS, 2 * lease_ms, lease_ms + grace_ms)


class OtherWorkers:
    """Warns once if another process works on the jobs of a store, for longer than a deploy takes.

    Such processes have signals of their own, if those are in memory: a fire in one wakes nobody in
    the other. Jobs name the worker that has them or ran them, so this costs no record, and a small
    query a minute only while there is another; alone, soon one an hour. Until jobs are run, nothing
    shows that there is another process.
    """

    def __init__(self, store: ListsWorkers, worker: str, *, overlap_ms: int) -> None:
        """Look into `store`, in which this process is named `worker`."""
        self._store = store
        self._worker = worker
        self._overlap_ms = overlap_ms
        # By the store's clock: what others did until the first look, they may be gone since.
        self._since_ms: int | None = None
        # {worker: when it was first seen at work since the first look}
        self._first_ms: dict[str, int] = {}
        # When others were last seen at work.
        self._last_ms = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="purgatory-other-workers")

    async def stop(self) -> None:
        """End looking. Idempotent."""
        task, self._task = self._task, None
        await cancel_until_done(task)

    async def _run(self) -> None:
        pause_s = LOOK_EVERY_S / 2
        while True:
            last_ms = self._last_ms
            with contextlib.suppress(StoreError):
                # In an outage, which the worker reports.
                if await self.look():
                    return
            pause_s = LOOK_EVERY_S if self._last_ms > last_ms else min(2 * pause_s, MAX_PAUSE_S)
            # Not all processes of a deployment at once.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - spreads load

    async def look(self) -> bool:
        """Look once; return True iff it has warned, and need not look again. Raises StoreError."""
        seen = await self._store.workers(limit=LOOKED_AT)
        if self._since_ms is None:
            self._since_ms = max(seen.values(), default=0)
        for worker, at_ms in seen.items():
            if worker == self._worker or at_ms <= self._since_ms:
                continue
            self._last_ms = max(self._last_ms, at_ms)
            if self._has_stayed(worker, at_ms):
                self._warn(worker)
                return True
        return False

    def _has_stayed(self, worker: str, at_ms: int) -> bool:
        """Return True iff a worker that was at work now was so `overlap_ms` ago, too."""
        if worker not in self._first_ms and len(self._first_ms) >= MAX_WORKERS:
            # Those seen first are gone for longest.
            del self._first_ms[next(iter(self._first_ms))]
        first_ms = self._first_ms.setdefault(worker, at_ms)
        return at_ms - first_ms >= self._overlap_ms

    def _warn(self, other: str) -> None:
        logger.warning(
            "another process, %s, works on the jobs of this store, and signals are in the memory "
            "of this process: a fire in one wakes only who waits in the same; share them, "
            'Purgatory(signals=RedisSignals("redis://localhost:6379")), for the service '
            "PURGATORY_SIGNALS=redis://localhost:6379, or run one process "
            "(docs/how-to/several-workers.md)",
            other,
            extra={"action": "signals-not-shared"},
        )
