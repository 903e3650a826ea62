"""Copies of logs of signals in this process: of one, and of several as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from purgatory.errors import BadCursorError, CursorExpiredError, SignalsUnavailableError
from purgatory.limits import Limits
from purgatory.signals.memory import MemorySignals, Signal
from purgatory.signals.model import (
    CURSOR,
    LOG_REPLACED,
    NO_LONGER_KEPT,
    SIGNALS_LOST,
    EntryType,
    Epoch,
    LogEntry,
    SignalStatistics,
    cursor_ahead,
    foreign_cursor,
)
from purgatory.timer import Clock

# As many as the log remembers.
MAX_EPOCHS: Final = 32
# A cursor that is further ahead of what was applied was not given by any process.
MAX_AHEAD: Final = 1_000_000_000
# Epochs that were asked for and are not known: clients may invent some.
MAX_UNKNOWN: Final = 1_000


class _Segment(NamedTuple):
    """A range of positions in this copy, and the offsets in the log that they stand for."""

    # Its first number; the number of a position is what it is if there is one log only.
    start: int
    # A number less this is the offset in the log.
    shift: int
    epoch: str
    # Epochs that have lost entries at its start: a cursor of theirs at that offset is before it.
    earlier: frozenset[str] = frozenset()


class Loss(NamedTuple):
    """What a log has lost of what was read here."""

    keys: dict[str, str]
    """{key: cursor of its last lost entry}: the cursors of these keys are expired here."""
    has_unknown_keys: bool
    """Keys whose entries were not read here may have lost some, too."""
    is_incomplete: bool = False
    """Entries that were missing when they were read are in the log again: all cursors expire."""


class LogReplica(MemorySignals):
    """The signals of one log, with the methods of `MemorySignals`.

    A cursor is an epoch of the log and an offset, and so the same in every process. Positions are
    of this process. They never decrease: where the log loses entries and uses their offsets again,
    the new ones get higher positions, so that no wait takes one for the other.

    Where a purgatory has several logs, positions of one never equal those of another: they are
    `count` apart, from `index` on.
    """

    def __init__(self, *, clock: Clock, limits: Limits, index: int = 0, count: int = 1) -> None:
        """Create the empty copy of log number `index` of `count`; `limits` are those of one."""
        super().__init__(clock=clock, limits=limits)
        self.share()
        self._index = index
        self._stride = count
        # Ascending; the last one is current. Invariant: none before the log was loaded.
        self._segments: list[_Segment] = []
        # The epochs of the log: an offset of one is valid up to the start of the next.
        self._epochs: tuple[Epoch, ...] = ()
        # {name: None}: the epochs whose cursors are all expired, the latest last.
        self._former: dict[str, None] = {}
        self.reads = 0
        """How often the log was read to its end."""
        self.on_unknown: Callable[[], object] | None = None
        """Called for a cursor of an epoch that is not known here: the log should be read."""
        # {name: reads}: epochs of cursors, which are not known here, and when they were asked for.
        self._unknown: dict[str, int] = {}
        self.is_loaded = False
        """The log was read to its end once."""
        self.is_settling = False
        """Which cursors a loss expires is not in the log yet: those given out now could, too."""
        self.applied = 0
        """The offset of the last entry that is here."""
        # The highest number of a cursor that was read: it may be ahead of what was applied.
        self._highest = 0
        # The first offset that was missing in a page, and the head of the log at that time. Later
        # entries up to the head may have removed it: it returns if the log loses those.
        self._removed = (0, 0)
        self._cursor_of = ("", -1)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of the log, the oldest first."""
        return self._epochs

    @property
    def epoch(self) -> str:
        """The name of the current epoch; empty before the log was loaded."""
        return self._epochs[-1].name if self._epochs else ""

    def begin(self, epochs: Sequence[Epoch], offset: int) -> None:
        """Begin with an empty history behind `offset` of a new log: older cursors are expired."""
        start = self._unused() if self._segments else 0
        # The one before still names the positions of waits that began in it.
        self._segments = [*self._segments[-1:], _Segment(start, start, epochs[-1].name)]
        self._former |= {epoch.name: None for epoch in self._epochs}
        for name in list(self._former)[: -2 * MAX_EPOCHS]:
            del self._former[name]
        self._epochs = tuple(epochs)
        self.applied = offset
        self._removed = (0, 0)
        self.drop_all(self._position(start + offset))

    def note_page(self, after: int, entries: Sequence[LogEntry], head: int) -> None:
        """Note which entries after an offset are missing in what was read; `head` is of the log."""
        if entries and entries[-1].offset - after == len(entries):
            return
        # Once all up to the head was applied, what has removed an entry was, too.
        first, last = self._removed if self.applied < self._removed[1] else (0, 0)
        present = {entry.offset for entry in entries}
        missing = next(offset for offset in itertools.count(after + 1) if offset not in present)
        self._removed = min(first or missing, missing), max(last, head)

    def skip_gap(self, offset: int, complete: Iterable[str]) -> None:
        """Continue behind `offset`; expire cursors, but of the keys without entries in between."""
        marks = {key: max(self.last(key), self.earliest(key)) for key in complete}
        self.applied = offset
        self.drop_all(self._position(self._segments[-1].shift + offset))
        for key, mark in marks.items():
            self.drop_at(key, mark)

    def may_be_old(self, epochs: Sequence[Epoch]) -> bool:
        """Return True iff clients may have cursors of `epochs`, from before what is known here."""
        # A log that was restored has a later epoch, and one that was emptied a single one.
        return len(epochs) > 1 or epochs[0].name in self._former or epochs[0] in self._epochs

    def extend(self, epochs: Sequence[Epoch]) -> Loss | None:
        """Adopt `epochs`; return what is lost. What is `common_until` them has been applied.

        None if the log has none later than those here and lacks one of them: then `begin` anew.
        """
        common = [epoch for epoch in self._epochs if epoch in epochs]
        if not common:
            return None
        # An epoch of ours may itself be among what was lost.
        ours = self._epochs[self._epochs.index(common[-1]) + 1 :]
        later = epochs[epochs.index(common[-1]) + 1 :]
        if not later:
            return None if ours else Loss({}, has_unknown_keys=False)
        known = {epoch.name for epoch in self._epochs}
        self._epochs = tuple(epochs)
        kept, name = min(epoch.start for epoch in (*ours, *later)), later[-1].name
        current = self._segments[-1]
        missing, head = self._removed
        is_incomplete = missing <= kept < head
        # A wait that began ahead of what is here may be after entries that are lost.
        is_ahead_of_loss = kept == self.applied and self._highest > current.shift + kept
        if kept >= self.applied and not is_ahead_of_loss:
            # What is here has the same offsets in the later epoch.
            self._segments[-1] = current._replace(epoch=name)
            if is_incomplete:
                self._removed = (0, 0)
                self.drop_all(self._position(current.shift + kept))
            return Loss({}, has_unknown_keys=False, is_incomplete=is_incomplete)
        last_kept = self.position_of(kept)
        # No key is empty: as for every key that is not known here.
        has_unknown_keys = self.earliest("") > last_kept
        lost = {
            key: self.cursor(last)
            for key in self._histories
            if (last := self.last(key)) > last_kept
        }
        start = self._unused()
        for epoch in later:
            if epoch.start == kept:
                break
            known.add(epoch.name)
        added = _Segment(start, start - kept, name, frozenset(known))
        self._segments = [*self._segments[-MAX_EPOCHS:], added]
        self.applied = kept
        self.skip_to(self._position(start))
        for key in lost:
            self.lose(key)
        if is_incomplete:
            self._removed = (0, 0)
            self.drop_all(self.head())
        return Loss(lost, has_unknown_keys, is_incomplete)

    def common_until(self, epochs: Sequence[Epoch]) -> int:
        """Return the last offset that the log of `epochs` has in common with what was read here.

        `applied` if that is the later one. What is common is applied before the rest, as waits may
        have begun ahead of what is here.
        """
        common = [epoch for epoch in self._epochs if epoch in epochs]
        later = epochs[epochs.index(common[-1]) + 1 :] if common else ()
        ours = self._epochs[self._epochs.index(common[-1]) + 1 :] if common else ()
        if not later:
            return self.applied
        return max(self.applied, min(epoch.start for epoch in (*ours, *later)))

    def kept_before(self, epoch: str, offset: int) -> int | None:
        """Return the last offset before that of a lost entry which the log has kept.

        None if it has not lost the entry of that epoch.
        """
        names = [each.name for each in self._epochs]
        later = self._epochs[names.index(epoch) + 1 :] if epoch in names else ()
        return min((each.start for each in later if each.start < offset), default=None)

    def apply(self, entry: LogEntry) -> Signal | None:
        """Append an entry; return its signal, or None if it ends the key's history."""
        self.applied = entry.offset
        position = self._position(self._segments[-1].shift + entry.offset)
        if entry.type is EntryType.UNREADABLE:
            self.skip_to(position)
            return None
        if entry.type is not EntryType.FIRED:
            self.drop_at(entry.key, position)
            return None
        previous = self.position_of(entry.previous) if entry.previous else 0
        return self.replicate(
            *(entry.key, entry.seq, position, entry.at_ms, entry.encoded, previous, entry.owner)
        )

    def lose(self, key: str) -> None:
        """Expire the cursors of `key`: entries of it may be missing here."""
        self.drop_at(key, self.head())

    def lose_through(self, key: str, offset: int) -> bool:
        """Expire cursors of `key` before an offset, if what is there was not read here.

        Returns whether it was not.
        """
        position = self.position_of(offset)
        if self.last(key) >= position:
            return False
        self._highest = max(self._highest, self._number(position))
        # The head stays: entries of other keys before `offset` are read later.
        self.lose_at(key, position)
        return True

    def lose_others(self, known: set[str], offset: int) -> None:
        """Expire cursors from before an offset of all keys but those that are `known`."""
        for key in [key for key in self._histories if key not in known]:
            self.lose_through(key, offset)
        position = self.position_of(offset)
        self._highest = max(self._highest, self._number(position))
        self.forget_through(max(position, self.earliest("")))

    def has_applied(self, position: int) -> bool:
        """Return True iff everything up to `position` is here."""
        return position <= self._position(self._segments[-1].shift + self.applied)

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `key` has `count` signals after `position`, or may have lost one."""
        # Of a key without a history, signals may have been lost, too.
        return super().has_after(key, position, count) or position < self.earliest(key)

    def offset_of(self, position: int) -> int:
        """Return the offset in the log of a position."""
        return int(self.cursor(position).partition("-")[2])

    def cursor_after(
        self, keys: tuple[str, ...], positions: tuple[int, ...], key: str | None, position: int
    ) -> str:
        """Return the cursor for the next wait on `keys` after one that has read to `position`.

        It may have begun ahead of the head, where another process was faster.
        """
        return self.cursor(position if key is not None else max(position, *positions))

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        cached, at = self._cursor_of
        if at == position:
            return cached
        number = self._number(position)
        segment = self._segments[-1]
        if number < segment.start:
            # A wait or a signal from before the last loss of the log.
            found = [each for each in self._segments if each.start <= number]
            segment = found[-1] if found else self._segments[0]
        made = f"{segment.epoch}-{max(0, number - segment.shift)}"
        self._cursor_of = made, position
        return made

    def position(self, key: str, cursor: str) -> int:
        """Return the position of `cursor`; "0" is the earliest retained.

        It may be ahead of the head: another process was faster.
        """
        if not isinstance(cursor, str):
            raise TypeError(f"cursor is {cursor!r}: give a string")
        if not self.is_loaded:
            raise SignalsUnavailableError(
                "the signals were not read from their server yet: try again later", is_behind=True
            )
        if cursor == "0":
            return self.earliest(key)
        match = CURSOR.fullmatch(cursor)
        if match is None:
            raise foreign_cursor(cursor)
        name, offset = match[1], int(match[2])
        if not any(epoch.name == name for epoch in self._epochs):
            self._require_read(name)
            raise self._refused(key, LOG_REPLACED)
        if self.kept_before(name, offset) is not None:
            raise self._refused(key, SIGNALS_LOST)
        if offset > self.applied + MAX_AHEAD:
            raise cursor_ahead(cursor)
        position = self.position_of(offset, name)
        if position < self.earliest(key):
            raise self._refused(key, NO_LONGER_KEPT)
        self._highest = max(self._highest, self._number(position))
        return position

    def _refused(self, key: str, reason: str) -> CursorExpiredError | SignalsUnavailableError:
        """Return the error of a cursor that has expired, or may have."""
        if self.is_settling:
            return SignalsUnavailableError(
                "the server has lost signals, and other processes are being notified: try again",
                is_behind=True,
            )
        return self.expired(key, reason)

    def _require_read(self, name: str) -> None:
        """Raise SignalsUnavailableError unless the log has been read since `name` was asked for.

        The epoch may be later than what is here: another process has noticed it first.
        """
        if name in self._former:
            return
        first = self._unknown.setdefault(name, self.reads)
        if len(self._unknown) > MAX_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        # Not the read that may be under way.
        if self.reads < first + 2:
            if self.on_unknown is not None:
                self.on_unknown()
            raise SignalsUnavailableError(
                "the cursor is of a later time than the signals that have arrived in this process: "
                "try again",
                is_behind=True,
            )

    def position_of(self, offset: int, epoch: str = "") -> int:
        """Return the position of an offset that was not lost; negative if it is unknown.

        Where entries were lost, the offset of the last that was kept has two: that of the entry
        and, for a cursor of a later `epoch`, that after the loss.
        """
        for segment in reversed(self._segments):
            number = segment.shift + offset
            is_start = number == segment.start and (
                epoch not in segment.earlier if epoch else not segment.earlier
            )
            if number > segment.start or is_start:
                return self._position(number)
        return -1

    def _unused(self) -> int:
        """Return a number above that of every signal, cursor and wait."""
        return max(self._highest, self._segments[-1].shift + self.applied) + 1

    def _position(self, number: int) -> int:
        return number * self._stride + self._index

    def _number(self, position: int) -> int:
        return (position - self._index) // self._stride


class ShardedSignals(MemorySignals):
    """Asks the copy that has a key. It holds no signals itself.

    A position names its log, so positions of different keys can be compared only if they are of one
    log. A cursor of keys in several logs has a part for each, with "." in between.
    """

    def __init__(
        self, clock: Clock, replicas: Sequence[LogReplica], shard_of: Callable[[str], int]
    ) -> None:
        """Ask `replicas`; `shard_of` returns the number of a key's."""
        super().__init__(clock=clock)
        self.share()
        self.replicas = tuple(replicas)
        self._shard_of = shard_of

    def parts(self) -> list[MemorySignals]:
        """Return the copies, one for each log."""
        return list(self.replicas)

    def part_number(self, key: str) -> int:
        """Return the number of the log of `key`."""
        return self._shard_of(key)

    def part(self, keys: Iterable[str]) -> MemorySignals:
        """Return the copy that has all of `keys`; this object if there is none."""
        shards = {self._shard_of(key) for key in keys}
        return self.replicas[shards.pop()] if len(shards) == 1 else self

    def of(self, key: str) -> LogReplica:
        """Return the copy that has `key`."""
        return self.replicas[self._shard_of(key)]

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; raise InvalidValueError if it is not JSON or too large."""
        return self.replicas[0].encode(value)

    def value(self, signal: Signal) -> Any:
        """Return the JSON value of `signal`."""
        return self.of(signal.key).value(signal)

    def head(self) -> int:
        """Return a number that increases with each signal of any log: no position of a key."""
        return sum(replica.head() for replica in self.replicas)

    def head_of(self, key: str) -> int:
        """Return the position of a reader of `key` that has read everything."""
        return self.of(key).head()

    def cursor_of(self, keys: Iterable[str]) -> str:
        """Return the cursor of a reader of `keys` that has read everything."""
        shards = sorted({self._shard_of(key) for key in keys})
        return self._joined(self.replicas[shard].head() for shard in shards)

    def mark(self) -> tuple[int, ...]:
        """Return where each log is now, for `since_mark`."""
        return tuple(replica.head() for replica in self.replicas)

    def since_mark(self, mark: Any, keys: tuple[str, ...]) -> tuple[int, ...]:
        """Return the positions after which to wait for what has fired since `mark`."""
        return tuple(mark[self._shard_of(key)] for key in keys)

    def cursor_after(
        self, keys: tuple[str, ...], positions: tuple[int, ...], key: str | None, position: int
    ) -> str:
        """Return the cursor for the next wait: a part for each log that has some of `keys`.

        Only the log of the signal that ended the wait was read on.
        """
        parts: dict[int, int] = {}
        fired = None if key is None else self._shard_of(key)
        for each, begun in zip(keys, positions, strict=True):
            shard = self._shard_of(each)
            if fired is not None:
                read = position if shard == fired else begun
            else:
                first = self.first_after(each, begun)
                read = max(begun, self.replicas[shard].head()) if first is None else begun
            parts[shard] = min(parts.get(shard, read), read)
        return self._joined(parts[shard] for shard in sorted(parts))

    def expired(self, key: str, reason: str) -> CursorExpiredError:
        """Return the error of a cursor that is no longer valid."""
        return self.of(key).expired(key, reason)

    def _joined(self, positions: Iterable[int]) -> str:
        return ".".join(map(self.cursor, positions))

    def position(self, key: str, cursor: str) -> int:
        """Return the position of `cursor`, or of its part for the log of `key`."""
        replica = self.of(key)
        # As in the others: what is no string is refused there.
        if type(cursor) is not str or cursor == "0":
            return replica.position(key, cursor)
        names = {epoch.name for epoch in replica.epochs}
        others = {
            epoch.name for other in self.replicas if other is not replica for epoch in other.epochs
        }
        parts = cursor.split(".", len(self.replicas))
        for part in parts:
            if part.partition("-")[0] in names:
                return replica.position(key, part)
        own = [part for part in parts if part.partition("-")[0] not in others]
        if not own:
            raise BadCursorError(
                f"cursor {cursor[:64]!r} is of other keys than {key!r}: use the cursor that was "
                "given for this key"
            )
        return replica.position(key, own[0])

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        return self.replicas[position % len(self.replicas)].cursor(position)

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `key` has `count` signals after `position`, or one that was trimmed."""
        return self.of(key).has_after(key, position, count)

    def read(self, key: str, position: int, limit: int) -> list[Signal]:
        """Return up to `limit` signals of `key` after `position`, the oldest first."""
        return self.of(key).read(key, position, limit)

    def first_after(self, key: str, position: int) -> Signal | None:
        """Return the oldest retained signal of `key` after `position`, or None."""
        return self.of(key).first_after(key, position)

    def earliest(self, key: str) -> int:
        """Return the position just before the earliest retained signal of `key`."""
        return self.of(key).earliest(key)

    def last(self, key: str) -> int:
        """Return the offset of the last signal or drop of `key`; 0 if there is neither."""
        return self.of(key).last(key)

    def statistics(self) -> SignalStatistics:
        """Return the number and size of the retained signals."""
        each = [replica.statistics() for replica in self.replicas]
        return SignalStatistics(
            signals=sum(one.signals for one in each),
            bytes=sum(one.bytes for one in each),
            keys=sum(one.keys for one in each),
        )
