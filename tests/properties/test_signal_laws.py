"""The laws of MemorySignals, against a list of everything that ever fired.

A reader that follows its cursors sees every signal of its key in order and once, or is told by a
CursorExpiredError that some are gone; there is never a silent gap. And a cursor expires for a
reason: a signal of its own key is gone, or the key was dropped, or forgotten among very many.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory import CursorExpiredError
from purgatory.limits import Limits
from purgatory.signals import MemorySignals, Signal
from purgatory.testing import MockClock

KEYS = [f"key {number}" for number in range(12)]

# Few keys are fired often, many now and then: so histories fill up, run empty and are forgotten.
keys = st.one_of(st.sampled_from(KEYS[:2]), st.sampled_from(KEYS[:2]), st.sampled_from(KEYS))


@dataclass
class Reader:
    """One that reads a key, and goes on from its cursor."""

    key: str
    cursor: str
    position: int
    """How far it knows that it has seen everything."""


@dataclass
class History:
    """Everything that ever happened to a key."""

    signals: list[Signal] = field(default_factory=list)
    dropped_at: int = 0
    """The head at which it was dropped last."""

    def after(self, position: int) -> list[Signal]:
        return [signal for signal in self.signals if signal.offset > position]


class SignalMachine(RuleBasedStateMachine):
    """Signals with small bounds, beside everything that ever fired."""

    @initialize(
        per_key=st.integers(1, 4),
        in_all=st.integers(1, 8),
        in_bytes=st.integers(10, 40),
    )
    def start(self, per_key: int, in_all: int, in_bytes: int) -> None:
        self.per_key, self.in_all, self.in_bytes = per_key, in_all, in_bytes
        limits = Limits(
            max_signals_per_key=per_key,
            max_signals=in_all,
            max_signal_bytes=in_bytes,
            max_value_bytes=10,
        )
        self.signals = MemorySignals(clock=MockClock(), limits=limits)
        self.histories = {key: History() for key in KEYS}
        self.readers: list[Reader] = []

    # Rules

    @rule(
        fired=st.lists(
            st.tuples(keys, st.integers(0, 8), st.sampled_from([None, "ann", "bob"])),
            min_size=1,
            max_size=6,
        )
    )
    def fire(self, fired: list[tuple[str, int, str | None]]) -> None:
        """A signal is numbered in its key and in all, and can be read at once."""
        for key, size, owner in fired:
            history = self.histories[key]
            before = self.signals.head()
            signal = self.signals.append(key, "x" * size, owner)
            assert signal.offset > before and signal.offset == self.signals.head()
            assert all(signal.seq > earlier.seq for earlier in history.signals[-1:])
            history.signals.append(signal)
            assert self.signals.has_after(key, before, 1)
            assert self.signals.read(key, before, 10) == [signal]
            assert self.signals.last(key) == signal.offset

    @rule(key=keys)
    def drop(self, key: str) -> None:
        """Every cursor from before expires."""
        before = self.signals.cursor(self.signals.head())
        self.signals.drop(key)
        self.histories[key].dropped_at = self.signals.head()
        self.expires(key, before)
        assert self.signals.position(key, self.signals.cursor(self.signals.head())) >= 0

    @rule(back=st.integers(0, 10))
    def grow_old(self, back: int) -> None:
        """Everything up to some signals ago is too old."""
        position = max(0, self.signals.head() - back)
        while self.signals.trim_through(position, 1):
            pass
        for key in KEYS:
            assert all(s.offset > position for s in self.signals.read(key, 0, 100))

    @rule(key=keys)
    def begin_to_read(self, key: str) -> None:
        """From now on."""
        position = self.signals.head()
        self.readers.append(Reader(key, self.signals.cursor(position), position))

    @rule(number=st.integers(0, 10), limit=st.integers(1, 5))
    def read_on(self, number: int, limit: int) -> None:
        """Everything that fired since, in order, or an error; never a part with a gap in it."""
        if not self.readers:
            return
        reader = self.readers[number % len(self.readers)]
        expected = self.histories[reader.key].after(reader.position)
        try:
            position = self.signals.position(reader.key, reader.cursor)
        except CursorExpiredError as expired:
            self.there_is_a_reason(reader)
            self.start_over(reader, expired)
            return
        assert position == reader.position
        self.has_so_many(reader.key, position, expected)
        read = self.signals.read(reader.key, position, limit)
        assert read == expected[:limit]
        # As an outcome does: behind what was read, or up to date where that was all.
        is_all = len(read) == len(expected)
        reader.position = self.signals.head() if is_all else read[-1].offset
        reader.cursor = self.signals.cursor(reader.position)

    @rule(key=keys, limit=st.integers(1, 10))
    def read_from_zero(self, key: str, limit: int) -> None:
        """What is kept: a tail of everything that fired."""
        position = self.signals.position(key, "0")
        assert position == self.signals.earliest(key)
        expected = self.histories[key].after(position)
        self.has_so_many(key, position, expected)
        assert self.signals.read(key, position, limit) == expected[:limit]

    # Laws

    def has_so_many(self, key: str, position: int, expected: list[Signal]) -> None:
        for count in range(1, len(expected) + 2):
            assert self.signals.has_after(key, position, count) == (len(expected) >= count)

    def expires(self, key: str, cursor: str) -> None:
        try:
            self.signals.position(key, cursor)
        except CursorExpiredError:
            return
        raise AssertionError("the cursor should have expired")

    def there_is_a_reason(self, reader: Reader) -> None:
        """A signal of the key since then is gone, or the key was dropped, or forgotten."""
        history = self.histories[reader.key]
        kept = self.signals.read(reader.key, 0, 100)
        is_trimmed = len(history.after(reader.position)) > len(
            [signal for signal in kept if signal.offset > reader.position]
        )
        # A key can only be forgotten once there are more keys than twice the signals in all.
        is_forgettable = len(KEYS) > 2 * self.in_all
        assert is_trimmed or history.dropped_at > reader.position or is_forgettable

    def start_over(self, reader: Reader, expired: CursorExpiredError) -> None:
        """Both cursors of the error are good: one for what is kept, one for from now on."""
        assert expired.key == reader.key
        earliest = self.signals.position(reader.key, expired.earliest)
        kept = self.signals.read(reader.key, earliest, 100)
        assert kept == self.histories[reader.key].after(earliest)
        reader.position = self.signals.position(reader.key, expired.head)
        reader.cursor = expired.head
        assert self.signals.read(reader.key, reader.position, 100) == []

    @invariant()
    def the_bounds_are_kept(self) -> None:
        statistics = self.signals.statistics()
        kept = {key: self.signals.read(key, 0, 100) for key in KEYS}
        assert statistics.signals == sum(map(len, kept.values())) <= self.in_all
        assert statistics.keys == sum(map(bool, kept.values()))
        encoded = [signal.encoded for signals in kept.values() for signal in signals]
        assert statistics.bytes == sum(map(len, encoded)) <= self.in_bytes
        assert max(map(len, kept.values())) <= self.per_key

    @invariant()
    def what_is_kept_is_the_end_of_what_fired(self) -> None:
        for key, history in self.histories.items():
            kept = self.signals.read(key, 0, 100)
            assert kept == history.signals[len(history.signals) - len(kept) :]

    @invariant()
    def up_to_date_cursors_are_good(self) -> None:
        head = self.signals.cursor(self.signals.head())
        for key in KEYS:
            assert self.signals.position(key, head) == self.signals.head()

    @invariant()
    def memory_is_bounded(self) -> None:
        # White box: what is remembered of empty histories.
        assert len(self.signals._histories) <= max(2 * self.in_all, 1) + 1


TestSignalLaws = SignalMachine.TestCase
