"""Signals of one process, kept in memory."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from purgatory.errors import CursorExpiredError
from purgatory.json_value import VALUE, encode_json, stored_value
from purgatory.limits import Limits
from purgatory.signals.model import (
    BEFORE_RESTART,
    CURSOR,
    LOST_OR_NOT_KEPT,
    NO_LONGER_KEPT,
    SignalStatistics,
    cursor_ahead,
    expired_cursor,
    foreign_cursor,
)
from purgatory.timer import Clock, SystemClock, SystemTimer, TimerTask, compiled

# Decoding the JSON of one returns an equal value of its type, while (1,) becomes [1].
_SCALARS: Final = frozenset({bool, float, int, str})


# Not a dataclass: one is created for every fire, and Cython makes a C structure of this.
class Signal:
    """One firing of a key. All waiters share it: do not change it."""

    __slots__ = (
        "_newer",
        "_newer_of_key",
        "_older",
        "_older_of_key",
        "_owner",
        "at_ms",
        "encoded",
        "key",
        "offset",
        "seq",
    )

    key: str
    seq: int
    """1, 2, 3 ... for each key; a later signal of the key has a higher one."""
    offset: int
    """The position among the signals of all keys, which cursors contain."""
    at_ms: int
    """UTC milliseconds since 1970: for display, not for ordering."""
    encoded: bytes
    """The value as JSON, encoded once for all waiters."""

    # Who fired it. Not the object that counts the owner's signals: the collector would visit that
    # for each signal.
    _owner: str | None
    # Its neighbours among the retained signals of its owner, and of its key.
    _older: Signal | None
    _newer: Signal | None
    _older_of_key: Signal | None
    _newer_of_key: Signal | None

    @property
    def value(self) -> Any:
        """The JSON value that was fired, decoded by each access."""
        return stored_value(self.encoded.decode())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle this signal without its neighbours."""
        fields = (self.key, self.seq, self.offset, self.at_ms, self.encoded)
        return _unlinked, fields

    def __repr__(self) -> str:
        """Return key, number and value."""
        return f"<Signal {self.seq} of {self.key!r}: {self.value!r}>"


def _unlinked(key: str, seq: int, offset: int, at_ms: int, encoded: bytes) -> Signal:
    signal = Signal.__new__(Signal)
    signal.key = key
    signal.seq = seq
    signal.offset = offset
    signal.at_ms = at_ms
    signal.encoded = encoded
    signal._older = signal._newer = signal._older_of_key = signal._newer_of_key = None
    signal._owner = None
    return signal


class _KeyHistory:
    """The retained signals of one key and, without any, its last sequence number and offset."""

    # Invariant: count is the length of the chain from oldest to newest, which are None if it is 0.
    __slots__ = ("count", "last_offset", "lost_offset", "newest", "oldest", "seq")

    oldest: Signal | None
    newest: Signal | None
    # `_add_history` sets these three.
    seq: int
    last_offset: int
    # Signals up to this offset may have been trimmed.
    lost_offset: int

    def __init__(self) -> None:
        self.oldest = self.newest = None
        self.count = 0


class _Share:
    """The retained signals of one owner."""

    # Invariant: count is the length of the list from oldest to newest, which are None if it is 0.
    __slots__ = ("bytes", "count", "newest", "oldest")

    oldest: Signal | None
    newest: Signal | None

    def __init__(self) -> None:
        self.oldest = self.newest = None
        self.count = 0
        self.bytes = 0


class MemorySignals:
    """A bounded history for each key, and for all of them together.

    A cursor is this object's epoch and an offset, which counts the signals of all keys: so a
    reader's cursor advances while its key is quiet, and trimming a key expires the cursors of its
    own readers only. Not thread-safe.

    Owners share the memory fairly: once it is full, the oldest signal of one who has at least an
    equal part of it is trimmed. What is older in the key of that signal is trimmed with it.
    """

    # Signals are in two linked lists, of their owner and of their key: trimming either is O(1), and
    # needs no object besides the signal.
    # Invariant: _count == sum(history.count for history in _histories.values()), and so for _bytes.
    # And _count == _unowned.count + sum(share.count for share in _shares.values()), none of them 0.
    def __init__(self, *, clock: Clock, limits: Limits | None = None) -> None:
        """Create an empty history. Above a maximum of `limits`, old signals are trimmed.

        Raises ValueError if `max_signal_bytes` is less than `max_value_bytes`.
        """
        limits = Limits() if limits is None else limits
        if limits.max_signal_bytes < limits.max_value_bytes:
            raise ValueError(
                f"max_signal_bytes is {limits.max_signal_bytes} and max_value_bytes "
                f"{limits.max_value_bytes}: at least one value must fit, or its signal would be "
                "trimmed before it is read"
            )
        self._clock = clock
        # The compiled form reads the system's clock without a call of Python.
        self._is_system: bool = type(clock) is SystemClock
        self._max_signals_per_key = limits.max_signals_per_key
        self._max_signals = limits.max_signals
        self._max_bytes = limits.max_signal_bytes
        self._max_value_bytes = limits.max_value_bytes
        # Enough for every key with signals, and for as many keys without.
        self._max_histories = 2 * limits.max_signals
        self._epoch = secrets.token_hex(6)
        self._prefix = self._epoch + "-"
        self._head = 0
        # Other processes fire too, and their server may lose signals: see LogReplica.
        self.is_shared: bool = False
        self._count = 0
        self._bytes = 0
        self._histories: dict[str, _KeyHistory] = {}
        # {key: None}: the histories without signals, the longest empty first.
        self._idle: dict[str, None] = {}
        self._unowned = _Share()
        # {owner: its signals}
        self._shares: dict[str, _Share] = {}
        # The share that was found to be the largest when that was last looked for.
        self._largest = self._unowned
        # The last signal, unless it was trimmed.
        self._newest: Signal | None = None
        # The maxima of the histories that were removed.
        self._forgotten_offset = 0
        self._forgotten_seq = 0
        # The signal whose value was fired or decoded last, and that value, which all its readers
        # share. Only one: a value can take twenty times the memory of its JSON, whose bytes are
        # what `max_signal_bytes` bounds. Invariant: its end runs no code, as it is JSON.
        self._decoded: Signal | None = None
        self._value: Any = None
        # The last cursor: the signal of a fire and the waits that it ends have the same.
        self._cached_position = -1
        self._cached_cursor = ""

    def append(self, key: str, value: Any, owner: str | None = None) -> Signal:
        """Append `value` as a signal of `key`; raise InvalidValueError unless it is JSON."""
        encoded = b"null" if value is None else self.encode(value)
        # Without calling a constructor, which takes as long as the rest. Before any state is read:
        # creating an object may run the collector, and so code that fires a key; so may a clock.
        signal = Signal.__new__(Signal)
        share = self._unowned if owner is None else _Share()
        if compiled and self._is_system:
            at_ms = system_wall_ms()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            at_ms = self._clock.wall_ms()
        # From here until the signal is linked, only `_add_history`, at the beginning, may run the
        # collector.
        history = self._histories.get(key)
        if history is None:
            history = self._add_history(key)
        if owner is not None:
            share = self._shares.setdefault(owner, share)
        signal.key = key
        signal.seq = history.seq + 1
        signal.offset = self._head + 1
        signal.at_ms = at_ms
        signal.encoded = encoded
        signal._owner = owner
        self._link(signal, history, share)
        if value is None or type(value) in _SCALARS:
            self._decoded, self._value = signal, value
        return signal

    def replicate(
        self,
        key: str,
        seq: int,
        offset: int,
        at_ms: int,
        encoded: bytes,
        previous: int,
        owner: str | None = None,
    ) -> Signal:
        """Append a signal as another process has numbered it, for a copy of its history.

        Offsets increase. `previous` is the offset of the key's signal before it: if that is
        unknown here, cursors from before it are expired.
        """
        # As in `append`: what may run the collector comes first.
        signal = Signal.__new__(Signal)
        share = self._unowned if owner is None else _Share()
        history = self._histories.get(key)
        if history is None:
            history = self._add_history(key)
        if previous > history.last_offset:
            # Nobody can read what is before a hole, and trimming it later would undo the mark.
            while history.count:
                self._trim_first(history)
            history.lost_offset = previous
        if owner is not None:
            share = self._shares.setdefault(owner, share)
        signal.key = key
        signal.seq = seq
        signal.offset = offset
        signal.at_ms = at_ms
        signal.encoded = encoded
        signal._owner = owner
        self._link(signal, history, share)
        return signal

    def _link(self, signal: Signal, history: _KeyHistory, share: _Share) -> None:
        """Append a new signal to the lists of its key and its owner; trim beyond a maximum."""
        if not history.count and signal.key in self._idle:
            del self._idle[signal.key]
        signal._newer = signal._newer_of_key = None
        signal._older = previous = share.newest
        if previous is None:
            share.oldest = signal
        else:
            previous._newer = signal
        share.newest = self._newest = signal
        signal._older_of_key = newest = history.newest
        if newest is None:
            history.oldest = signal
        else:
            newest._newer_of_key = signal
        history.newest = signal
        history.count += 1
        history.seq = signal.seq
        history.last_offset = self._head = signal.offset
        size = len(signal.encoded)
        share.count += 1
        share.bytes += size
        self._count += 1
        self._bytes += size
        if history.count > self._max_signals_per_key:
            self._trim_first(history)
        while self._count > self._max_signals or self._bytes > self._max_bytes:
            self._trim_oldest(self._crowding(share) if self._shares else share)

    def value(self, signal: Signal) -> Any:
        """Return the JSON value of `signal`: all who read it one after another share one object."""
        if signal is not self._decoded:
            value = signal.value
            # Now, because decoding may run the collector, and so code that fires a key.
            self._decoded, self._value = signal, value
        return self._value

    def share(self) -> None:
        """Note that the signals are a copy of those of several processes."""
        self.is_shared = True

    def cursor_after(
        self, keys: tuple[str, ...], positions: tuple[int, ...], key: str | None, position: int
    ) -> str:
        """Return the cursor for the next wait on `keys` after one that has read to `position`.

        `key` is the one that fired, or None. For signals that are shared.
        """
        return self.cursor(position)

    def loss(self, keys: tuple[str, ...], positions: tuple[int, ...]) -> CursorExpiredError | None:
        """Return the error of a wait that may have missed signals of a key. For shared ones."""
        for key, position in zip(keys, positions, strict=True):
            if position < self.earliest(key):
                return self.expired(key, LOST_OR_NOT_KEPT)
        return None

    def head(self) -> int:
        """Return the position of a reader that has read everything."""
        return self._head

    def position(self, key: str, cursor: str) -> int:
        """Return the position of `cursor`; "0" is the earliest retained."""
        if not isinstance(cursor, str):
            raise TypeError(f"cursor is {cursor!r}: give a string")
        if cursor == "0":
            return self.earliest(key)
        match = CURSOR.fullmatch(cursor)
        if match is None:
            raise foreign_cursor(cursor)
        offset = int(match[2])
        if match[1] != self._epoch:
            raise self.expired(key, BEFORE_RESTART)
        if offset > self._head:
            raise cursor_ahead(cursor)
        if offset < self.earliest(key):
            raise self.expired(key, NO_LONGER_KEPT)
        return offset

    def part(self, keys: Iterable[str]) -> MemorySignals:
        """Return the history that has all of `keys`, or this object."""
        return self

    def part_number(self, key: str) -> int:
        """Return the index in `parts` of the one that has `key`."""
        return 0

    def parts(self) -> list[MemorySignals]:
        """Return the histories that this consists of."""
        return [self]

    def head_of(self, key: str) -> int:
        """Return the position of a reader of `key` that has read everything."""
        return self._head

    def cursor_of(self, keys: Iterable[str]) -> str:
        """Return the cursor of a reader of `keys` that has read everything."""
        return self.cursor(self._head)

    def mark(self) -> int | tuple[int, ...]:
        """Return where the history is now, for `since_mark`."""
        return self._head

    def since_mark(self, mark: Any, keys: tuple[str, ...]) -> int | tuple[int, ...]:
        """Return the positions after which to wait for what has fired since `mark`."""
        position: int = mark
        return position

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        if position != self._cached_position:
            if compiled:
                made = numbered(self._prefix, position)  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
            else:
                made = f"{self._prefix}{position}"
            self._cached_position, self._cached_cursor = position, made
        return self._cached_cursor

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `key` has `count` signals after `position`, or one that was trimmed.

        `count` is at least 1.
        """
        newest = self._newest
        if newest is not None and newest.key is key and count == 1:
            # Usually a waiter is tried because of the newest signal, which needs no look-up.
            return newest.offset > position
        history = self._histories.get(key)
        if history is None or history.last_offset <= position:
            return False
        # A trimmed signal still counts: a waiter must not miss it.
        if count == 1 or history.lost_offset > position:
            return True
        signal = history.newest
        while count > 1 and signal is not None:
            signal = signal._older_of_key
            count -= 1
        return signal is not None and signal.offset > position

    def read(self, key: str, position: int, limit: int) -> list[Signal]:
        """Return up to `limit` signals of `key` after `position`, the oldest first."""
        unread: list[Signal] = []
        signal = self.first_after(key, position)
        while signal is not None and len(unread) < limit:
            unread.append(signal)
            signal = signal._newer_of_key
        return unread

    def first_after(self, key: str, position: int) -> Signal | None:
        """Return the oldest retained signal of `key` after `position`, or None."""
        signal = self._newest
        # A waiter that was just resumed reads the newest signal, which needs no look-up.
        if signal is None or signal.key is not key:
            history = self._histories.get(key)
            if history is None:
                return None
            signal = history.newest
        # From the end: a reader has few unread signals, while the history may be long.
        first = None
        while signal is not None and signal.offset > position:
            first = signal
            signal = signal._older_of_key
        return first

    def earliest(self, key: str) -> int:
        """Return the position just before the earliest retained signal of `key`."""
        history = self._histories.get(key)
        return self._forgotten_offset if history is None else history.lost_offset

    def last(self, key: str) -> int:
        """Return the offset of the last signal or drop of `key`; 0 if there is neither."""
        history = self._histories.get(key)
        return 0 if history is None else history.last_offset

    def drop(self, key: str) -> None:
        """Drop the history of `key`; earlier cursors are expired for it."""
        # The drop has an offset of its own, so that earlier cursors differ from later ones.
        self.drop_at(key, self._head + 1)

    def drop_at(self, key: str, offset: int) -> None:
        """Drop the history of `key` as of `offset`, which becomes the head if it is behind."""
        self.lose_at(key, offset)
        if offset > self._head:
            self._head = offset

    def lose_at(self, key: str, offset: int) -> None:
        """Drop the history of `key` as of `offset`."""
        history = self._histories.get(key)
        if history is None:
            history = self._add_history(key)
        while history.count:
            self._trim_first(history)
        history.last_offset = history.lost_offset = offset
        self._idle[key] = None

    def skip_to(self, offset: int) -> None:
        """Move the head to `offset`, if it is behind."""
        if offset > self._head:
            self._head = offset

    def forget_through(self, offset: int) -> None:
        """Expire cursors of keys that are unknown here up to `offset`, and none after it."""
        self._forgotten_offset = offset

    def drop_all(self, offset: int) -> None:
        """Drop every history as of `offset`, which becomes the head: all cursors are expired."""
        for key in list(self._histories):
            self.drop(key)
        self._histories.clear()
        self._idle.clear()
        self._head = self._forgotten_offset = offset

    def trim_through(self, position: int, limit: int) -> bool:
        """Trim up to `limit` signals, none after `position`; return True iff others remain."""
        for share in (self._unowned, *self._shares.values()):
            while share.oldest is not None and share.oldest.offset <= position:
                if limit <= 0:
                    return True
                limit -= 1
                self._trim_oldest(share)
        return False

    def statistics(self) -> SignalStatistics:
        """Return the number and size of the retained signals."""
        keys = len(self._histories) - len(self._idle)
        return SignalStatistics(signals=self._count, bytes=self._bytes, keys=keys)

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; raise InvalidValueError if it is not JSON or too large."""
        if value is None:
            return b"null"
        return encode_json(value, VALUE, self._max_value_bytes)

    def _add_history(self, key: str) -> _KeyHistory:
        # Created first, because that may run the collector, which may change the state read below.
        history = _KeyHistory()
        while len(self._histories) >= self._max_histories and self._idle:
            for oldest in self._idle:
                gone = self._histories[oldest]
                break
            del self._idle[oldest], self._histories[oldest]
            if gone.last_offset > self._forgotten_offset:
                self._forgotten_offset = gone.last_offset
            if gone.seq > self._forgotten_seq:
                self._forgotten_seq = gone.seq
        if key in self._histories:
            return self._histories[key]
        # Starts after the removed histories, so that no sequence number is used twice.
        history.seq = self._forgotten_seq
        history.last_offset = history.lost_offset = self._forgotten_offset
        self._histories[key] = history
        return history

    def _crowding(self, newest: _Share) -> _Share:
        """Return a share of average size or above: `newest`, if it is; the largest, as a rule."""
        by_bytes = self._bytes > self._max_bytes
        total = self._bytes if by_bytes else self._count
        shares = len(self._shares) + (1 if self._unowned.count else 0)
        # The last signal of `newest` is the one that others have to make room for.
        if newest.count > 1 and (newest.bytes if by_bytes else newest.count) * shares >= total:
            return newest
        largest = self._largest
        if largest is newest or (largest.bytes if by_bytes else largest.count) * shares < total:
            most = -1
            for share in (self._unowned, *self._shares.values()):
                taken = share.bytes if by_bytes else share.count
                if taken > most and share is not newest:
                    largest, most = share, taken
            self._largest = largest
        return largest

    def _trim_oldest(self, share: _Share) -> None:
        """Trim the oldest signal of an owner or, if its key has an older one, that."""
        oldest = share.oldest
        assert oldest is not None
        self._trim_first(self._histories[oldest.key])

    def _trim_first(self, history: _KeyHistory) -> None:
        """Trim the oldest signal of a key that has signals."""
        signal = history.oldest
        assert signal is not None
        history.oldest = newer = signal._newer_of_key
        if newer is None:
            history.newest = None
            self._idle[signal.key] = None
        else:
            newer._older_of_key = None
        owner = signal._owner
        share = self._unowned if owner is None else self._shares[owner]
        older, newer = signal._older, signal._newer
        if older is None:
            share.oldest = newer
        else:
            older._newer = newer
        if newer is None:
            share.newest = older
        else:
            newer._older = older
        # A reference to this signal must not keep its neighbours alive.
        signal._older = signal._newer = signal._newer_of_key = None
        if signal is self._newest:
            self._newest = None
        if signal is self._decoded:
            self._decoded = self._value = None
        history.lost_offset = signal.offset
        history.count -= 1
        self._count -= 1
        size = len(signal.encoded)
        self._bytes -= size
        share.count -= 1
        share.bytes -= size
        if owner is not None and not share.count:
            del self._shares[owner]

    def expired(self, key: str, reason: str) -> CursorExpiredError:
        """Return the error of a cursor that is no longer valid."""
        earliest, head = self.cursor(self.earliest(key)), self.cursor(self._head)
        return expired_cursor(key, reason, earliest=earliest, head=head)


# The precision of the age: with three marks, a signal is retained up to a third too long.
MARKS = 3
# This many take half a millisecond, in plain Python one; the others wait for the next tick.
SLICE = 1_000


class HistoryTrimmer(TimerTask):
    """A periodic task that runs only while there are signals.

    It marks the position periodically and trims up to the mark of `max_age_ms` ago: cheaper than a
    time on every signal, and independent of steps of the wall clock.
    """

    __slots__ = ("_marks", "_period_ms", "_signals", "_through", "_timer")

    def __init__(self, signals: MemorySignals, timer: SystemTimer, max_age_ms: int) -> None:
        """Prepare to trim `signals`; call `wake`."""
        self._period_ms = max(1, -(-max_age_ms // MARKS))
        super().__init__(self._period_ms)
        self._signals = signals
        self._timer = timer
        self._marks: deque[int] = deque()
        # The position up to which it trims now; None between trims.
        self._through: int | None = None

    def wake(self) -> None:
        """Start, if it is not running: there are signals now."""
        if not self.is_pending:
            self._timer.add(self)

    def run(self) -> None:
        """Trim up to the oldest mark, add a mark, and continue while there are signals."""
        if self._through is None:
            self._marks.append(self._signals.head())
            if len(self._marks) > MARKS:
                self._through = self._marks.popleft()
        if self._through is not None and self._signals.trim_through(self._through, SLICE):
            self.delay_ms = 1
            self._timer.add(self)
            return
        self._through = None
        self.delay_ms = self._period_ms
        # Marks that stay are of positions before all later signals: they trim nothing.
        if self._signals.statistics().signals:
            self._timer.add(self)
