"""Following the log of one shard into its copy here."""

from __future__ import annotations

import asyncio
import logging
import random
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from purgatory.errors import SignalsError, SignalsNotReadyError, SignalsUnavailableError
from purgatory.redis_server.script import CONNECTION_ERRORS
from purgatory.retry_policy import RetryPolicy
from purgatory.signals.log_entry import EntryType, LogEntry
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.redis.shard_log import (
    AppendRequest,
    LogState,
    ShardLog,
    parse_message,
)
from purgatory.signals.shared import SignalListener
from purgatory.timer import SystemClock

logger = logging.getLogger("purgatory.signals.redis")

# The log itself is read so often: that finds what no message has brought, and lost logs.
CHECK_S: Final = 1.0
PAGE: Final = 1_000
# Own entries that were not applied yet: more only if nothing arrives from the log for long.
MAX_OWN: Final = 10_000
# Keys of one request or of one turn of the event loop.
CHUNK: Final = 200
# Longest time without yielding to the event loop.
_SLICE_S: Final = 0.002
_STOP_S: Final = 0.5
_RECONNECT: Final = RetryPolicy(first_ms=50, max_ms=1_000)

Ended = int | Future[int]

_clock = SystemClock()


def _now_s() -> float:
    return _clock.now_ns() / 1e9


class _OwnEntry(NamedTuple):
    """An entry that a caller of this process has appended, and waits for."""

    epoch: str
    key: str
    future: Future[Ended]


class Follower:
    """Applies the entries of one log here, each once and in order.

    Messages bring new entries promptly, and the log is the truth: it is read at the start, after
    each connection, where a message does not follow what was applied, and once a second. Redis's
    pub/sub may drop messages; a blocking read of a stream would notice neither a deleted stream nor
    one that was replaced, and costs a round trip for each wake-up.
    """

    def __init__(
        self,
        log: ShardLog,
        replica: LogReplica,
        *,
        shards: int,
        has_key: Callable[[str], bool],
        on_load: Callable[[], None],
    ) -> None:
        self.log = log
        self.replica = replica
        self._shards = shards
        self._has_key = has_key
        self._on_load = on_load
        self._listener: SignalListener | None = None
        self._connect: Callable[[], Awaitable[Redis]] | None = None
        self._task: asyncio.Task[None] | None = None
        # {offset: the caller that has appended it and waits until it is applied}
        self._own: dict[int, _OwnEntry] = {}
        # (offset in the current epoch, future), of callers that wait until it is applied.
        self._behind: list[tuple[int, Future[None]]] = []
        # {key: the offset through which its entries are kept}, not reported to the log yet.
        self._unreported: dict[str, int] = {}
        self._catching_up = asyncio.Lock()
        self.error: SignalsError | None = SignalsUnavailableError("Redis was not reached yet")
        self.lag = self.gaps = self.reconnects = self.applied = 0

    def start(self, connect: Callable[[], Awaitable[Redis]], listener: SignalListener) -> None:
        """Start to follow, on the running event loop; `connect` returns the client of the log."""
        self._connect = connect
        self._listener = listener
        # What was read before it was stopped may be old.
        self.replica.is_loaded = False
        self.error = SignalsUnavailableError("Redis was not reached yet")
        self._task = asyncio.create_task(self._run(), name="purgatory-signals-follower")

    async def stop(self) -> None:
        """Stop following; callers that wait for their entries are told that they are in the log."""
        task, self._task = self._task, None
        # More than once: a client that is just connecting may take it for a timeout of its own.
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_STOP_S)
        self._settle(all_of_them=True)

    def apply_own(self, epoch: str, entries: Sequence[LogEntry]) -> list[Future[Ended]]:
        """Apply entries that this process has appended, now or in their turn.

        Returns for each a future of how many operations it ended.
        """
        loop = asyncio.get_running_loop()
        futures: list[Future[Ended]] = [loop.create_future() for _ in entries]
        for entry, future in zip(entries, futures, strict=True):
            if entry.offset in self._own:
                # The log uses its offset again.
                self._report_own(entry.offset, entry.offset - 1)
            self._own[entry.offset] = _OwnEntry(epoch, entry.key, future)
        replica = self.replica
        if entries and epoch == replica.epoch and replica.applied == entries[0].offset - 1:
            for entry in entries:
                self._apply(entry)
        elif epoch == replica.epoch:
            self._settle()
        elif epoch in {each.name for each in replica.epochs}:
            # It came late: the log may have lost it meanwhile. One that is new is read soon.
            self._end_lost()
        for offset in list(self._own)[: len(self._own) - MAX_OWN]:
            # They are applied all the same, as those of other processes.
            self._end_own(offset)
        return futures

    async def reach(self, offset: int, timeout_s: float) -> bool:
        """Wait until the entry at `offset` was applied; False if it takes too long."""
        if self.replica.applied >= offset:
            return True
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._behind.append((offset, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            future.cancel()
            self._behind = [pair for pair in self._behind if pair[1] is not future]
        return self.replica.applied >= offset

    async def _run(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._follow()
            except SignalsError as exc:
                error = exc
            except CONNECTION_ERRORS as exc:
                error = SignalsUnavailableError(f"{type(exc).__name__}: {exc}")
            except Exception as exc:
                logger.exception(
                    "following the signals failed", extra={"action": "signals-follower-failed"}
                )
                error = SignalsUnavailableError(f"{type(exc).__name__}: {exc}")
            if self.error is None:
                # It had been connected: say so once, and start with short pauses.
                attempt = 1
                self.reconnects += 1
                logger.warning(
                    "signals of other processes do not arrive until Redis is back: %s",
                    error,
                    extra={"action": "signals-away"},
                )
            self.error = error
            await asyncio.sleep(_RECONNECT.delay_s(attempt))

    async def _follow(self) -> None:
        assert self._connect is not None
        pubsub = (await self._connect()).pubsub()
        try:
            await pubsub.subscribe(self.log.channel)
            is_pinged = False
            checked_s = _now_s()
            while True:
                message = await pubsub.get_message(timeout=CHECK_S)
                if message is None:
                    if is_pinged:
                        raise SignalsUnavailableError("Redis has been silent for too long")
                    await pubsub.ping()
                    is_pinged = True
                else:
                    is_pinged = False
                    await self._handle(message)
                # Spread over the processes, which may have started together.
                if _now_s() - checked_s > CHECK_S * random.uniform(0.75, 1.25):  # noqa: S311 - no secret
                    await self.catch_up()
                    checked_s = _now_s()
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it so

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            # Also when the client connected again by itself.
            await self.catch_up()
            return
        if message["type"] != "message":
            return
        try:
            epoch, entries = parse_message(message["data"])
        except (ValueError, IndexError):
            # Somebody else publishes there: the log has the truth.
            await self.catch_up()
            return
        replica = self.replica
        if not entries:
            # They were too long for a message.
            await self.catch_up()
            return
        if entries[-1].offset <= replica.applied and epoch == replica.epoch:
            return
        if epoch != replica.epoch or entries[0].offset > replica.applied + 1:
            await self.catch_up()
            return
        await self._apply_all(entries)

    async def catch_up(self) -> None:
        """Read the log to its end; raise SignalsError."""
        async with self._catching_up:
            while not await self._read_page():
                pass
            if not self.replica.is_loaded:
                self.replica.is_loaded = True
                self._on_load()
            await self._report_losses()
        if self.error is not None:
            self.error = None
            logger.info("follows the signals", extra={"action": "signals-followed"})

    async def _read_page(self) -> bool:
        """Read and apply some entries; return True iff those were the last."""
        replica = self.replica
        after = replica.applied
        state = await self.log.read(after, PAGE)
        if state.shards != self._shards:
            raise SignalsNotReadyError(
                f"the signals of this prefix are in {state.shards} shards, and this process was "
                f"given shards={self._shards}: give the same number everywhere, or another prefix"
            )
        if not replica.epochs:
            replica.begin(state.epochs, state.trimmed)
            await self._learn_keys(state.trimmed)
        elif not await self._is_continued(state, after):
            return False
        await self._apply_all(state.entries)
        self.lag = max(0, state.head - replica.applied)
        return self.lag == 0 or not state.entries

    async def _learn_keys(self, trimmed: int) -> None:
        """Learn which cursors from before the first entry are still good: those of quiet keys."""
        cursor = 0
        while True:
            page = await self.log.keys_after(cursor)
            for key, lost in page.lost.items():
                # The others have entries that are read now, and say so themselves.
                if 0 < lost <= trimmed:
                    self.replica.drop_at(key, self.replica.position_at(lost))
            cursor = page.after
            if not cursor:
                break
        self.replica.forget_through(self.replica.position_at(page.forgotten))

    async def _is_continued(self, state: LogState, after: int) -> bool:
        """Return True iff the entries that were read follow those that are here."""
        replica = self.replica
        if replica.applied != after:
            # A fire of this process was applied meanwhile: what was read may be older.
            return state.head >= replica.applied and replica.epoch == state.epochs[-1].name
        common = replica.common_until(state.epochs)
        if common > after and state.trimmed <= after:
            await self._apply_all([entry for entry in state.entries if entry.offset <= common])
            if not any(after < entry.offset <= common for entry in state.entries):
                # Those in between were removed.
                replica.applied = max(replica.applied, common)
            return False
        lost = replica.extend(state.epochs)
        if lost is not None:
            self._end_lost()
        if lost is None or (lost == [] and state.head < replica.applied):
            logger.error(
                "the log of signals was emptied or replaced: every cursor of it is expired",
                extra={"action": "signals-lost"},
            )
            watched = self._watched_here()
            replica.begin(state.epochs, state.trimmed)
            self._end_lost(is_new_log=True)
            self._settle(all_of_them=True, but_own=True)
            await self._lose(watched)
        elif replica.applied < after:
            kept = replica.applied
            logger.error(
                "the server has lost %d entries of the log of signals: cursors of %d keys are "
                "expired",
                after - kept,
                len(lost),
                extra={"action": "signals-lost"},
            )
            self._unreported |= dict.fromkeys(lost, kept)
            self._settle(all_of_them=True, but_own=True)
            await self._lose(lost)
        elif state.trimmed > replica.applied:
            # This process was suspended, or cut off: those it has waits on may have fired.
            last = await self._last_of(self._watched_here())
            if replica.applied != after:
                return False
            # Others may have begun to wait meanwhile.
            watched = self._watched_here()
            complete = {key for key in watched if last.get(key, state.head) <= after}
            replica.skip_gap(state.trimmed, complete)
            await self._lose([key for key in watched if key not in complete])
        else:
            return True
        self.gaps += 1
        return False

    async def _last_of(self, keys: list[str]) -> dict[str, int]:
        last: dict[str, int] = {}
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            last |= zip(chunk, await self.log.last(chunk), strict=True)
        return last

    async def _lose(self, keys: Sequence[str]) -> None:
        """Expire the cursors of `keys`, and end the waits on them."""
        assert self._listener is not None
        for index, key in enumerate(dict.fromkeys(keys)):
            self.replica.lose(key)
            self._listener.check(key)
            if index % CHUNK == CHUNK - 1:
                # Their clients come back at once: not all of them in the same moment.
                await asyncio.sleep(random.uniform(0.01, 0.05))  # noqa: S311 - no secret

    async def _report_losses(self) -> None:
        """Tell the other processes which keys have lost entries: only we may have seen those."""
        while self._unreported:
            keys = list(self._unreported)[:CHUNK]
            items = [(EntryType.LOST, key, b"%d" % self._unreported[key]) for key in keys]
            await self.log.append(AppendRequest(items))
            for key in keys:
                del self._unreported[key]

    def _watched_here(self) -> list[str]:
        assert self._listener is not None
        return list(filter(self._has_key, self._listener.watched()))

    async def _apply_all(self, entries: Sequence[LogEntry]) -> None:
        until_s = _now_s() + _SLICE_S
        for entry in entries:
            if entry.offset > self.replica.applied:
                self._apply(entry)
            if _now_s() > until_s:
                await asyncio.sleep(0)
                until_s = _now_s() + _SLICE_S

    def _apply(self, entry: LogEntry) -> None:
        listener = self._listener
        assert listener is not None
        self.replica.apply(entry)
        self.applied += 1
        is_dropped = entry.type is EntryType.DROPPED
        ended = listener.cancel(entry.key) if is_dropped else listener.check(entry.key)
        own = self._own.pop(entry.offset, None)
        if own is not None and not own.future.done():
            own.future.set_result(ended)
        if self._behind:
            self._settle()

    def _end_lost(self, *, is_new_log: bool = False) -> None:
        """Report own entries that the log has lost: they are acknowledged."""
        replica = self.replica
        names = {epoch.name for epoch in replica.epochs}
        for offset, own in list(self._own.items()):
            kept = replica.kept_before(own.epoch, offset)
            if own.epoch not in names:
                if is_new_log:
                    # It was of the log before: every cursor of that is expired.
                    self._end_own(offset)
                    continue
                # Its epoch is lost, too, and was never seen here.
                kept = offset - 1
            if kept is not None:
                self._report_own(offset, kept)

    def _report_own(self, offset: int, kept: int) -> None:
        # Perhaps nobody has seen it: it may not even have been applied here.
        key = self._own[offset].key
        self._unreported[key] = min(kept, self._unreported.get(key, kept))
        self._end_own(offset)

    def _end_own(self, offset: int) -> None:
        future = self._own.pop(offset).future
        if not future.done():
            future.set_result(0)

    def _settle(self, *, all_of_them: bool = False, but_own: bool = False) -> None:
        """Resume the callers whose entries were applied."""
        applied = self.replica.applied
        is_all = all_of_them and not but_own
        for offset in [each for each in self._own if is_all or each <= applied]:
            self._end_own(offset)
        for offset, waiting in self._behind:
            if (all_of_them or offset <= applied) and not waiting.done():
                waiting.set_result(None)
        self._behind = [pair for pair in self._behind if not pair[1].done()]
