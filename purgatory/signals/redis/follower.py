"""Following the log of one shard into its copy here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from itertools import islice
from typing import Any, Final, NamedTuple

from purgatory.background import OutageLog, cancel_until_done
from purgatory.errors import SignalsError, SignalsNotReadyError, SignalsUnavailableError
from purgatory.event_loop.parked_operations import LogListener
from purgatory.group_commit import GroupCommit
from purgatory.redis_server.script import CONNECTION_ERRORS
from purgatory.redis_server.server import RedisServer
from purgatory.redis_server.subscription import Subscription
from purgatory.signals.log_replica import LogReplica, Loss
from purgatory.signals.model import EntryType
from purgatory.signals.redis.entry_applier import EntryApplier
from purgatory.signals.redis.entry_codec import AppendRequest
from purgatory.signals.redis.script_connection import MessageTap
from purgatory.signals.redis.shard_log import LogState, ShardLog

logger = logging.getLogger("purgatory.signals.redis")

PAGE: Final = 1_000
# Keys of one request or report, or of one turn of the event loop.
CHUNK: Final = 200
_REFRESH_S: Final = 0.05


class _Report(NamedTuple):
    """Losses that were reported in the log, which may lose the report, too."""

    epoch: str
    offset: int
    """The offset of the last entry that reports them."""
    lost: dict[tuple[str, str], int] | None
    """As `LossReports` has it; None for all keys."""


class LossReports:
    """Reports to other processes which keys have lost entries that this one alone may have seen.

    A report is an entry of the log, and made again if the log loses it before it was read here.
    """

    def __init__(self, log: ShardLog, replica: LogReplica) -> None:
        self._log = log
        self._replica = replica
        # {(key, epoch): offset of the last lost entry}, not reported to the log yet.
        self._unreported: dict[tuple[str, str], int] = {}
        # Nobody may know which keys have lost entries: the cursors of all have to expire.
        self._is_all_unreported = False
        # What was reported, and not read here yet: then each process that reads it knows.
        self._reports: list[_Report] = []

    def add(self, lost: Mapping[str, str]) -> None:
        """Report {key: cursor of its last lost entry} with the next `send`."""
        for key, cursor in lost.items():
            epoch, _, offset = cursor.partition("-")
            last = self._unreported.get((key, epoch), 0)
            self._unreported[key, epoch] = max(last, int(offset))

    def add_loss(self, loss: Loss, *, entries: int) -> None:
        """Log that the server has lost `entries`, and report their keys with the next `send`."""
        logger.error(
            "the server has lost %d entries of the log of signals: cursors of %s keys are expired",
            entries,
            "all" if loss.has_unknown_keys else len(loss.keys),
            extra={"action": "signals-lost"},
        )
        self.add(loss.keys)
        if loss.has_unknown_keys:
            self._is_all_unreported = True

    def begin(self, *, is_all: bool) -> None:
        """Log that the log was replaced, and forget its losses; report all keys if `is_all`."""
        logger.error(
            "the log of signals was emptied or replaced: every cursor of it is expired",
            extra={"action": "signals-lost"},
        )
        self._is_all_unreported = is_all
        self._unreported.clear()
        self._reports.clear()

    async def send(self) -> bool:
        """Write what is not reported yet to the log; return True iff there was any.

        Raises SignalsError.
        """
        is_any = self._is_all_unreported or bool(self._unreported)
        if self._is_all_unreported:
            started = await self._log.expire_all(self._replica.epochs[0].name)
            self._reports.append(_Report(started.name, started.start, None))
            self._is_all_unreported = False
            self._unreported.clear()
        while self._unreported:
            reported = dict(islice(self._unreported.items(), CHUNK))
            # Another process may have reported the same, or more: the log appends what is new.
            items = [
                (EntryType.LOST, key, f"{epoch}-{offset}".encode())
                for (key, epoch), offset in reported.items()
            ]
            reply = await self._log.append(AppendRequest(items))
            self._reports.append(_Report(reply.epoch, reply.before + len(reply.seqs), reported))
            for each, offset in reported.items():
                # Unless a later one was lost meanwhile.
                if self._unreported[each] == offset:
                    del self._unreported[each]
        return is_any

    def confirm(self) -> None:
        """Forget reports that were read here: if they are lost, the key is among what is lost."""
        names = {epoch.name for epoch in self._replica.epochs}
        applied = self._replica.applied
        self._reports = [
            report
            for report in self._reports
            if report.epoch not in names or report.offset > applied
        ]

    def repeat_lost(self) -> None:
        """Report again what was in reports that the log has lost."""
        names = {epoch.name for epoch in self._replica.epochs}
        reports, self._reports = self._reports, []
        for report in reports:
            is_kept = self._replica.kept_before(report.epoch, report.offset) is None
            if report.epoch in names and is_kept:
                self._reports.append(report)
            elif report.lost is None:
                self._is_all_unreported = True
            else:
                for each, offset in report.lost.items():
                    self._unreported[each] = max(self._unreported.get(each, 0), offset)


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
        on_lost: Callable[[SignalsError], None] = lambda error: None,
    ) -> None:
        """`on_lost` is called when the log was followed, and can no longer be reached."""
        self.log = log
        self.replica = replica
        self._shards = shards
        self._has_key = has_key
        self._on_change = on_change
        self._on_lost = on_lost
        self._subscription: Subscription | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._losses = LossReports(log, replica)
        self.applier = EntryApplier(replica, log.codec, self._losses.add)
        # How often the last entries of keys had been removed in the midst, as far as is known here.
        self._holes = 0
        # The epoch and the head of the log as it began to be read; None before that.
        self._read_until: tuple[str, int] | None = None
        # Those who come while the log is read share the next reading.
        self._readers: GroupCommit[None] = GroupCommit(
            self._read_for, weigh=lambda _: 0, max_weight=1
        )
        self.error: SignalsError | None = SignalsUnavailableError("Redis was not reached yet")
        # Says why nothing can be fired into the log, or only late, although it can be read.
        self.refusal: str | None = None
        self._refusals = OutageLog(
            logger,
            "signals are refused, or late: %s",
            "the server of the signals takes writes again",
            actions=("signals-refused", "signals-accepted"),
        )
        self.lag = self.gaps = self.reconnects = 0
        self.looks = 0
        """How often the log was read because its messages arrive, or still do."""

    def start(self, server: RedisServer, listener: LogListener) -> None:
        """Start to follow, on the running event loop."""
        self.applier.listener = listener
        # What was read before it was stopped may be old.
        self.replica.is_loaded = False
        self.error = SignalsUnavailableError("Redis was not reached yet")
        self.replica.on_unknown = self.refresh
        self._subscription = Subscription(
            server,
            self.log.tag,
            [self.log.channel],
            on_message=self._handle,
            on_subscribed=self._look,
            # The log itself: that finds what no message has brought, and lost logs.
            on_beat=self._look,
            on_lost=self._note_lost,
            on_connected=self._tap,
            logger=logger,
        )
        self._subscription.start()

    async def stop(self) -> None:
        """Stop following; callers that wait for their entries are told that they are in the log."""
        self.replica.on_unknown = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()
        task, self._refreshing = self._refreshing, None
        await cancel_until_done(task)
        await self._readers.join()
        self.applier.give_up()

    def refresh(self) -> asyncio.Task[None]:
        """Read the log twice, soon: then it was read after this call; callers share that."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), context=Context())
        return self._refreshing

    async def _refresh(self) -> None:
        for _ in range(2):
            # Clients may invent cursors: a few reads a second, whatever they ask for.
            await asyncio.sleep(_REFRESH_S)
            with contextlib.suppress(SignalsError, *CONNECTION_ERRORS):
                await self.catch_up()

    def _note_lost(self, error: Exception) -> None:
        if not isinstance(error, SignalsError):
            error = SignalsUnavailableError(f"{type(error).__name__}: {error}")
        if self.error is None:
            self.reconnects += 1
            self._on_lost(error)
        self.error = error
        self._on_change()

    def _tap(self, connection: Any) -> None:
        MessageTap.attach(connection, self.log.channel.encode(), self.applier.apply_message)

    async def _look(self) -> None:
        await self.catch_up()
        self.looks += 1
        await self.log.open_connection()

    async def _handle(self, channel: str, data: bytes) -> None:
        if not await self.applier.apply_long(data):
            # The log has the truth, whatever somebody else publishes there.
            await self.catch_up()

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
        replica = self.replica
        async with self.applier.reading:
            is_reported = True
            # Also what was reported: only then are the cursors good that are given out next.
            while is_reported:
                self._read_until = None
                while not await self._read_page():
                    pass
                if not replica.is_loaded:
                    replica.is_loaded = True
                    self._on_change()
                replica.reads += 1
                self._losses.confirm()
                is_reported = await self._losses.send()
            replica.is_settling = False

    async def _read_page(self) -> bool:
        """Read and apply some entries; return True iff those were the last, or came meanwhile.

        Messages bring what has come since the first page: a log that is never quiet would be read
        for ever, which takes the server's time from those who fire.
        """
        replica = self.replica
        after = replica.applied
        state = await self.log.read(after, PAGE)
        if state.shards != self._shards:
            raise SignalsNotReadyError(
                f"the signals of this prefix were begun with shards={state.shards}, and this "
                f"process was given shards={self._shards}: give shards={state.shards} (in the "
                f"service, PURGATORY_SIGNALS_SHARDS={state.shards}), or use another prefix or "
                "another database of the server"
            )
        self._note_refusal(state.refusal)
        if not replica.epochs:
            replica.begin(state.epochs, state.trimmed)
            await self._learn_lost(is_first=True)
            self._holes = state.holes
        elif not await self._is_continued(state, after):
            return False
        # A gap may have been skipped, and what was trimmed is no gap for one who begins.
        after = max(after, state.trimmed)
        if self._has_unknown_holes(state):
            await self._learn_lost()
            self._holes = state.holes
        if state.entries:
            replica.note_page(after, state.entries, state.head)
        await self.applier.apply_page(state.entries)
        self.lag = max(0, state.head - replica.applied)
        epoch, head = self._read_until = self._read_until or (replica.epoch, state.head)
        is_read = replica.epoch == epoch and replica.applied >= head
        return is_read or self.lag == 0 or not state.entries

    def _note_refusal(self, code: str) -> None:
        if not code:
            self.refusal = None
            self._refusals.end()
            return
        self.refusal = f"the server of the signals refuses writes: {code}"
        if code == "NOPUBLISH":
            self.refusal = (
                "the user of Redis may not publish on the channels of the signals: other workers "
                "hear of a fire up to a second later; allow it with ACL SETUSER"
            )
        self._refusals.begin(self.refusal)

    def _has_unknown_holes(self, state: LogState) -> bool:
        """Return True iff holes are to be learned before entries that were read are given out.

        No later entry of those keys would tell.
        """
        return state.hole > self.replica.applied and state.holes != self._holes

    async def _learn_lost(self, until: int | None = None, *, is_first: bool = False) -> None:
        """Expire the cursors of keys whose last entry was removed before it was read here.

        Through the offset `until`, if that is given: the log has others after it. Those from before
        the first entry that is read stay good for the other keys, which are quiet.
        """
        replica = self.replica
        known: set[str] = set()
        cursor = 0
        while True:
            page = await self.log.keys_after(cursor)
            known |= page.lost.keys()
            for key, lost in page.lost.items():
                is_common = until is None or lost <= until
                if lost and is_common and replica.lose_through(key, lost):
                    self._check(key)
            cursor = page.after
            if not cursor:
                break
        forgotten = page.forgotten if until is None else min(page.forgotten, until)
        if is_first:
            replica.forget_through(replica.position_of(forgotten))
        elif forgotten > replica.applied:
            replica.lose_others(known, forgotten)
            for key in self._watched_here():
                self._check(key)

    async def _is_continued(self, state: LogState, after: int) -> bool:
        """Return True iff the entries that were read follow those that are here."""
        replica = self.replica
        if replica.applied != after:
            # A fire of this process was applied meanwhile: what was read may be older.
            is_newer = state.trimmed <= replica.applied <= state.head
            return is_newer and replica.epoch == state.epochs[-1].name
        common = replica.common_until(state.epochs)
        if common > after:
            await self._read_common(state, after, common)
            return False
        loss = replica.extend(state.epochs)
        if loss is not None:
            self._losses.repeat_lost()
            self.applier.end_lost()
        if loss is None or (not loss.keys and state.head < replica.applied):
            await self._begin_anew(state)
        elif replica.applied < after:
            self._losses.add_loss(loss, entries=after - replica.applied)
            self.applier.begin_later()
            # Waits on lost keys end with the report of the loss: a cursor that their clients got
            # now would expire with that, too.
            replica.is_settling = True
            if loss.is_incomplete and not loss.has_unknown_keys:
                reported = set(loss.keys)
                await self._lose([each for each in self._watched_here() if each not in reported])
        elif loss.is_incomplete:
            logger.error(
                "entries of the log of signals have returned that were removed when this process "
                "read it: every cursor is expired here",
                extra={"action": "signals-lost"},
            )
            await self._lose(self._watched_here())
        elif state.trimmed > replica.applied:
            # To read again would find another gap where signals are fired all the time.
            return await self._skip_gap(state, state.trimmed, {each.key for each in state.entries})
        else:
            return True
        self._note_gap()
        return False

    def _note_gap(self) -> None:
        self.gaps += 1
        # The holes are those of another log, or of another time of it.
        self._holes = -1

    async def _read_common(self, state: LogState, after: int, common: int) -> None:
        """Apply what was still read of the epoch here, up to where a later one has begun."""
        if state.trimmed > after:
            await self._skip_gap(state, min(state.trimmed, common), set())
            return
        if self._has_unknown_holes(state):
            await self._learn_lost(common)
        entries = [entry for entry in state.entries if entry.offset <= common]
        self.replica.note_page(after, entries, state.head)
        await self.applier.apply_page(entries)
        if not entries:
            # Those in between were removed.
            self.replica.applied = max(self.replica.applied, common)

    async def _begin_anew(self, state: LogState) -> None:
        replica = self.replica
        watched = self._watched_here()
        # Of an old state of the log: other processes may accept cursors from before again.
        is_all = replica.may_be_old(state.epochs)
        replica.begin(state.epochs, state.trimmed)
        self._losses.begin(is_all=is_all)
        self.applier.end_lost(is_new_log=True)
        self.applier.begin_later()
        replica.is_settling = is_all
        if not is_all:
            # Otherwise the log begins anew once more, as all cursors of it are expired next.
            await self._lose(watched)

    async def _skip_gap(self, state: LogState, offset: int, read: set[str]) -> bool:
        """Continue behind `offset`: what is before was removed, and not read here.

        This process was suspended, or cut off: the keys that it has waits on may have fired. Those
        in `read` have later entries that are applied next, and say what was before them. Returns
        False if that was not so.
        """
        replica = self.replica
        after = replica.applied
        self._note_gap()
        last = await self._last_of([key for key in self._watched_here() if key not in read])
        if replica.applied != after:
            return False
        # Others may have begun to wait meanwhile.
        watched = self._watched_here()
        complete = {key for key in watched if key in read or last.get(key, state.head) <= after}
        replica.skip_gap(offset, complete)
        await self._lose([key for key in watched if key not in complete])
        return True

    async def _last_of(self, keys: list[str]) -> dict[str, int]:
        last: dict[str, int] = {}
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            last |= zip(chunk, await self.log.last(chunk), strict=True)
        return last

    async def _lose(self, keys: Sequence[str]) -> None:
        """Expire the cursors of `keys`, and end the waits on them."""
        for index, key in enumerate(dict.fromkeys(keys)):
            self.replica.lose(key)
            self._check(key)
            if index % CHUNK == CHUNK - 1:
                # Their clients come back at once: not all of them in the same moment.
                await asyncio.sleep(random.uniform(0.01, 0.05))  # noqa: S311 - no secret

    def _watched_here(self) -> list[str]:
        assert self.applier.listener is not None
        return list(filter(self._has_key, self.applier.listener.watched()))

    def _check(self, key: str) -> None:
        assert self.applier.listener is not None
        _ = self.applier.listener.check(key)
