"""Following the log of one shard into its copy here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from asyncio import Future
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from purgatory.errors import SignalsError, SignalsNotReadyError, SignalsUnavailableError
from purgatory.group_commit import GroupCommit
from purgatory.redis_server.script import CONNECTION_ERRORS
from purgatory.retry_policy import RetryPolicy
from purgatory.signals.log_entry import EntryType, LogEntry
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.redis.message_tap import MessageTap
from purgatory.signals.redis.shard_log import (
    AppendReply,
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
# A message of more is applied in slices, by the task.
_AT_ONCE: Final = 16
_AT_ONCE_BYTES: Final = 64 * 1024
# Longest time without yielding to the event loop.
_SLICE_S: Final = 0.002
_STOP_S: Final = 0.5
_REFRESH_S: Final = 0.05
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


class _Report(NamedTuple):
    """Losses that were reported in the log, which may lose the report, too."""

    epoch: str
    offset: int
    """What tells of them is in the log up to here."""
    kept: dict[str, int] | None
    """{key: the offset through which its entries are kept}; None for all keys."""


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
        on_change: Callable[[], None],
    ) -> None:
        self.log = log
        self.replica = replica
        self._shards = shards
        self._has_key = has_key
        self._on_change = on_change
        self._listener: SignalListener | None = None
        self._connect: Callable[[], Awaitable[Redis]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        # {offset: the caller that has appended it and waits until it is applied}
        self._own: dict[int, _OwnEntry] = {}
        # While this process appends, {(epoch, offset): what the entry has ended}: the message of an
        # entry may arrive before the reply that says whose it is. The newest MAX_OWN: a process
        # that appends all the time has a few of them itself, among those of all others.
        self._early: OrderedDict[tuple[str, int], Ended] = OrderedDict()
        self._appending = 0
        # (offset in the current epoch, future), of callers that wait until it is applied.
        self._behind: list[tuple[int, Future[None]]] = []
        # {key: the offset through which its entries are kept}, not reported to the log yet.
        self._unreported: dict[str, int] = {}
        # Nobody may know which keys have lost entries: the cursors of all have to expire.
        self._is_all_unreported = False
        # What was reported, and not read here yet: then each process that reads it knows.
        self._reports: list[_Report] = []
        # How often the last entries of keys had been removed in the midst, as far as is known here.
        self._holes = 0
        self._catching_up = asyncio.Lock()
        # Those who come while the log is read share the next reading.
        self._readers: GroupCommit[None] = GroupCommit(
            self._read_for, weigh=lambda _: 0, max_weight=1
        )
        self.error: SignalsError | None = SignalsUnavailableError("Redis was not reached yet")
        self.lag = self.gaps = self.reconnects = self.applied = 0

    def start(self, connect: Callable[[], Awaitable[Redis]], listener: SignalListener) -> None:
        """Start to follow, on the running event loop; `connect` returns the client of the log."""
        self._connect = connect
        self._listener = listener
        # What was read before it was stopped may be old.
        self.replica.is_loaded = False
        self.error = SignalsUnavailableError("Redis was not reached yet")
        self.replica.on_unknown = self.refresh
        self._task = asyncio.create_task(self._run(), name="purgatory-signals-follower")

    async def stop(self) -> None:
        """Stop following; callers that wait for their entries are told that they are in the log."""
        self.replica.on_unknown = None
        tasks = [task for task in (self._task, self._refreshing) if task is not None]
        self._task = self._refreshing = None
        # More than once: a client that is just connecting may take it for a timeout of its own.
        while tasks := [task for task in tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_STOP_S)
        await self._readers.join()
        self._settle(all_of_them=True)

    async def append(self, request: AppendRequest) -> tuple[AppendReply, list[Future[Ended]]]:
        """Append entries and apply them, as `apply_own` does; a repeat applies nothing."""
        with self.appending():
            reply = await self.log.append(request)
            return reply, self.apply_reply(request, reply)

    @contextlib.contextmanager
    def appending(self) -> Iterator[None]:
        """Note what entries end here until it is known whose they are."""
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1
            if not self._appending:
                self._early.clear()

    def apply_reply(self, request: AppendRequest, reply: AppendReply) -> list[Future[Ended]]:
        """Apply the entries of a request that this process has made, as `apply_own` does."""
        if reply.is_repeat:
            return []
        numbered = enumerate(zip(request.items, reply.seqs, strict=True), start=1)
        entries = [
            LogEntry(
                *(reply.before + number, kind, seq, reply.at_ms, 0, key, encoded), request.owner
            )
            for number, ((kind, key, encoded), seq) in numbered
        ]
        return self.apply_own(reply.epoch, entries)

    def apply_own(self, epoch: str, entries: Sequence[LogEntry]) -> list[Future[Ended]]:
        """Apply entries that this process has appended, now or in their turn.

        Returns for each a future of how many operations it ended.
        """
        loop = asyncio.get_running_loop()
        futures: list[Future[Ended]] = [loop.create_future() for _ in entries]
        for entry, future in zip(entries, futures, strict=True):
            if entry.offset in self._own:
                # The log uses its offset again.
                self._report_own(entry.offset)
            early = self._early.pop((epoch, entry.offset), None)
            if early is not None:
                future.set_result(early)
                continue
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
            self._settle()
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

    def refresh(self) -> asyncio.Task[None]:
        """Read the log twice, soon: then it was read after this call; callers share that."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        for _ in range(2):
            # Clients may invent cursors: a few reads a second, whatever they ask for.
            await asyncio.sleep(_REFRESH_S)
            with contextlib.suppress(SignalsError, *CONNECTION_ERRORS):
                await self.catch_up()

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
            self._on_change()
            await asyncio.sleep(_RECONNECT.delay_s(attempt))

    async def _follow(self) -> None:
        assert self._connect is not None
        pubsub = (await self._connect()).pubsub()
        try:
            await pubsub.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it so
            # Before anything is under way on this connection.
            MessageTap.attach(pubsub.connection, self.log.channel.encode(), self.apply_message)
            await pubsub.subscribe(self.log.channel)
            await self.log.open_connection()
            is_subscribed = is_pinged = False
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
                    if is_subscribed and message["type"] == "subscribe":
                        # The client's new connection has no tap, and may have data under way.
                        raise SignalsUnavailableError("the connection was lost")
                    is_subscribed = True
                    await self._handle(message)
                # Spread over the processes, which may have started together.
                if _now_s() - checked_s > CHECK_S * random.uniform(0.75, 1.25):  # noqa: S311 - no secret
                    await self.catch_up()
                    await self.log.open_connection()
                    checked_s = _now_s()
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it so

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
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

    def apply_message(self, data: bytes) -> bool:
        """Apply a short message that follows what is here; False if it is left to the task."""
        replica = self.replica
        if self._catching_up.locked() or not replica.is_loaded or len(data) > _AT_ONCE_BYTES:
            return False
        try:
            epoch, entries = parse_message(data)
        except (ValueError, IndexError):
            return False
        if epoch != replica.epoch or not 0 < len(entries) <= _AT_ONCE:
            return False
        if entries[0].offset > replica.applied + 1:
            return False
        for entry in entries:
            if entry.offset > replica.applied:
                self._apply(entry)
        return True

    def read_to_end(self) -> Awaitable[None]:
        """Return once all that was in the log at the call is here; raise SignalsError."""
        return self._readers.submit(None)

    async def _read_for(self, readers: list[None]) -> list[None]:
        await self._read_log()
        return readers

    async def catch_up(self) -> None:
        """Read the log to its end, now that its messages arrive; raise SignalsError."""
        await self._read_log()
        if self.error is not None:
            self.error = None
            logger.info("follows the signals", extra={"action": "signals-followed"})

    async def _read_log(self) -> None:
        async with self._catching_up:
            while not await self._read_page():
                pass
            if not self.replica.is_loaded:
                self.replica.is_loaded = True
                self._on_change()
            self.replica.reads += 1
            self._confirm_reports()
            await self._report_losses()

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
        if self._has_unknown_holes(state):
            await self._learn_holes()
            self._holes = state.holes
        if state.entries:
            replica.note_page(after, state.entries, state.head)
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

    def _has_unknown_holes(self, state: LogState) -> bool:
        """Return True iff holes are to be learned before entries that were read are given out.

        No later entry of those keys would tell.
        """
        return state.hole > self.replica.applied and state.holes != self._holes

    async def _learn_holes(self, until: int | None = None) -> None:
        """Expire the cursors of keys whose last entry was removed before it was read here.

        Through the offset `until`, if that is given: the log has others after it.
        """
        assert self._listener is not None
        replica = self.replica
        known: set[str] = set()
        cursor = 0
        while True:
            page = await self.log.keys_after(cursor)
            known |= page.lost.keys()
            for key, lost in page.lost.items():
                is_common = until is None or lost <= until
                if lost and is_common and replica.lose_through(key, lost):
                    self._listener.check(key)
            cursor = page.after
            if not cursor:
                break
        forgotten = page.forgotten if until is None else min(page.forgotten, until)
        if forgotten > replica.applied:
            replica.lose_others(known, forgotten)
            for key in self._watched_here():
                self._listener.check(key)

    async def _is_continued(self, state: LogState, after: int) -> bool:
        """Return True iff the entries that were read follow those that are here."""
        replica = self.replica
        if replica.applied != after:
            # A fire of this process was applied meanwhile: what was read may be older.
            return state.head >= replica.applied and replica.epoch == state.epochs[-1].name
        common = replica.common_until(state.epochs)
        if common > after:
            await self._read_common(state, after, common)
            return False
        loss = replica.extend(state.epochs)
        if loss is not None:
            self._end_lost()
        if loss is None or (not loss.keys and state.head < replica.applied):
            await self._begin_anew(state)
        elif replica.applied < after:
            kept = replica.applied
            logger.error(
                "the server has lost %d entries of the log of signals: cursors of %s keys are "
                "expired",
                after - kept,
                "all" if loss.has_unknown_keys else len(loss.keys),
                extra={"action": "signals-lost"},
            )
            self._add_unreported(loss.keys)
            self._is_all_unreported |= loss.has_unknown_keys
            self._settle(all_of_them=True, but_own=True)
            await self._lose(self._watched_here() if loss.is_incomplete else loss.keys)
        elif loss.is_incomplete:
            logger.error(
                "entries of the log of signals have returned that were removed when this process "
                "read it: every cursor is expired here",
                extra={"action": "signals-lost"},
            )
            await self._lose(self._watched_here())
        elif state.trimmed > replica.applied:
            await self._skip_gap(state, state.trimmed)
        else:
            return True
        self.gaps += 1
        # Those of another log, or of another time of it.
        self._holes = -1
        return False

    async def _read_common(self, state: LogState, after: int, common: int) -> None:
        """Apply what was still read of the epoch here, up to where a later one has begun."""
        if state.trimmed > after:
            self.gaps += 1
            await self._skip_gap(state, min(state.trimmed, common))
            return
        if self._has_unknown_holes(state):
            await self._learn_holes(common)
        entries = [entry for entry in state.entries if entry.offset <= common]
        self.replica.note_page(after, entries, state.head)
        await self._apply_all(entries)
        if not entries:
            # Those in between were removed.
            self.replica.applied = max(self.replica.applied, common)

    async def _begin_anew(self, state: LogState) -> None:
        replica = self.replica
        logger.error(
            "the log of signals was emptied or replaced: every cursor of it is expired",
            extra={"action": "signals-lost"},
        )
        watched = self._watched_here()
        # Of an old state of the log: other processes may accept cursors from before again.
        self._is_all_unreported = replica.may_be_old(state.epochs)
        replica.begin(state.epochs, state.trimmed)
        self._unreported.clear()
        self._reports.clear()
        self._end_lost(is_new_log=True)
        self._settle(all_of_them=True, but_own=True)
        await self._lose(watched)

    async def _skip_gap(self, state: LogState, offset: int) -> None:
        """Continue behind `offset`: what is before was removed, and not read here.

        This process was suspended, or cut off: the keys that it has waits on may have fired.
        """
        replica = self.replica
        after = replica.applied
        last = await self._last_of(self._watched_here())
        if replica.applied != after:
            return
        # Others may have begun to wait meanwhile.
        watched = self._watched_here()
        complete = {key for key in watched if last.get(key, state.head) <= after}
        replica.skip_gap(offset, complete)
        await self._lose([key for key in watched if key not in complete])

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
        if self._is_all_unreported:
            started = await self.log.expire_all(self.replica.epochs[0].name)
            self._reports.append(_Report(started.name, started.start, None))
            self._is_all_unreported = False
            self._unreported.clear()
        # They may have been noted before the epoch of the loss was known here.
        self._add_unreported([])
        while self._unreported:
            reported = dict(list(self._unreported.items())[:CHUNK])
            items = [(EntryType.LOST, key, b"%d" % kept) for key, kept in reported.items()]
            reply = await self.log.append(AppendRequest(items))
            self._reports.append(_Report(reply.epoch, reply.before + len(reply.seqs), reported))
            for key, kept in reported.items():
                # Of a later epoch than is known here, it is reported anew.
                if self._unreported[key] == kept and reply.epoch == self.replica.epoch:
                    del self._unreported[key]
            if reply.epoch != self.replica.epoch:
                return

    def _confirm_reports(self) -> None:
        """Forget reports that were read here: if they are lost, the key is among what is lost."""
        names = {epoch.name for epoch in self.replica.epochs}
        applied = self.replica.applied
        self._reports = [
            report
            for report in self._reports
            if report.epoch not in names or report.offset > applied
        ]

    def _repeat_lost_reports(self) -> None:
        names = {epoch.name for epoch in self.replica.epochs}
        reports, self._reports = self._reports, []
        for report in reports:
            is_kept = self.replica.kept_before(report.epoch, report.offset) is None
            if report.epoch in names and is_kept:
                self._reports.append(report)
            elif report.kept is None:
                self._is_all_unreported = True
            else:
                self._add_unreported(report.kept)

    def _add_unreported(self, keys: Iterable[str]) -> None:
        # Only what is in the log since its last epoch began has surely been written after the loss:
        # before may be entries that were lost themselves, and have returned.
        start = self.replica.epochs[-1].start
        self._unreported |= dict.fromkeys([*self._unreported, *keys], start)

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
        if own is not None:
            if not own.future.done():
                own.future.set_result(ended)
        elif self._appending:
            self._early[self.replica.epoch, entry.offset] = ended
            if len(self._early) > MAX_OWN:
                # Not by iter() of a dict, which passes over all that were removed.
                self._early.popitem(last=False)
        if self._behind:
            self._settle()

    def _end_lost(self, *, is_new_log: bool = False) -> None:
        """Report own entries that the log has lost, which are acknowledged, and lost reports."""
        replica = self.replica
        self._repeat_lost_reports()
        names = {epoch.name for epoch in replica.epochs}
        for offset, own in list(self._own.items()):
            is_known = own.epoch in names
            if not is_known and is_new_log:
                # It was of the log before: every cursor of that is expired.
                self._end_own(offset)
            elif not is_known or replica.kept_before(own.epoch, offset) is not None:
                # An epoch that is not known is lost, too, and was never seen here.
                self._report_own(offset)

    def _report_own(self, offset: int) -> None:
        # Perhaps nobody has seen it: it may not even have been applied here.
        self._add_unreported([self._own[offset].key])
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
