"""What MemorySignals keeps, what it forgets, and that it never hides a gap."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from collections.abc import Callable

import pytest

from purgatory import CursorExpiredError, InvalidValueError, Status
from purgatory.limits import Limits
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.wait_histograms import WaitTimes
from purgatory.signals import Condition, MemorySignals, Signal, WaitOperation
from purgatory.signals.memory import SLICE, HistoryTrimmer
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.cases import cases


@pytest.fixture
def make(clock: MockClock) -> Callable[..., MemorySignals]:
    def make_signals(**bounds: int) -> MemorySignals:
        return MemorySignals(clock=clock, limits=Limits(**bounds))

    return make_signals


@pytest.fixture
def signals(make: Callable[..., MemorySignals]) -> MemorySignals:
    return make()


def values(signals: MemorySignals, key: str) -> list[object]:
    """Everything that is kept of a key."""
    return [signal.value for signal in signals.read(key, 0, 1_000_000)]


def kept(signals: MemorySignals) -> tuple[int, int, int]:
    """Signals, bytes, keys."""
    statistics = signals.statistics()
    return statistics.signals, statistics.bytes, statistics.keys


def test_a_signal_is_numbered_and_kept(signals: MemorySignals, clock: MockClock) -> None:
    """By its key, among all keys, with the time of day and its JSON."""
    clock.set_wall(1_700_000_000_000)
    signals.append("a", None)
    signals.append("b", 1)
    signal = signals.append("a", {"by": "card"})
    assert (signal.key, signal.seq, signal.offset) == ("a", 2, 3)
    assert (signal.at_ms, signal.value) == (1_700_000_000_000, {"by": "card"})
    assert signal.encoded == b'{"by":"card"}'
    assert signals.read("a", 0, 10)[-1] is signal
    assert (signals.head(), signals.last("a"), signals.last("b"), signals.last("c")) == (3, 3, 2, 0)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1, 2}, b"bytes", object(), {(1, 2): 3}, "\ud800", 10**5_000],
    ids=["nan", "inf", "set", "bytes", "object", "tuple-key", "surrogate", "huge-int"],
)
def test_what_is_not_json_is_refused(signals: MemorySignals, value: object) -> None:
    """And leaves no trace: neither a signal nor a number that is missing later."""
    with pytest.raises(InvalidValueError, match="the value is not JSON"):
        signals.append("a", value)
    assert (kept(signals), signals.head(), signals.append("a", 1).seq) == ((0, 0, 0), 0, 1)


# Bounds


def test_a_key_that_fires_while_its_history_is_made(make: Callable[..., MemorySignals]) -> None:
    """By what the collector finds, whichever object is made: each has a number of its own."""

    class Firing:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            histories[-1].append("k", "inner")

    histories: list[MemorySignals] = []
    threshold = gc.get_threshold()
    for allocations in range(1, 30):
        signals = make(max_signals=100)
        histories.append(signals)
        # The youngest generation is enough, and others are large.
        gc.collect(0)
        Firing()
        try:
            gc.set_threshold(allocations, 1_000, 1_000)
            outer = signals.append("k", "outer")
        finally:
            gc.set_threshold(*threshold)
        gc.collect(0)
        found = signals.read("k", 0, 9)
        assert sorted(signal.value for signal in found) == ["inner", "outer"] and outer in found
        assert [(signal.seq, signal.offset) for signal in found] == [(1, 1), (2, 2)]
        assert (signals.statistics().signals, signals.statistics().keys) == (2, 1)


def test_what_has_made_way_is_let_go(make: Callable[..., MemorySignals]) -> None:
    """At once, and nothing else is kept for it: whoever still holds one does not hold others."""
    signals = make(max_signals_per_key=2, max_signals=5)
    held = signals.append("way 0", None)
    for number in range(1_000):
        signals.append(f"way {number % 3}", None)
    every = [thing for thing in gc.get_objects() if type(thing) is Signal]
    alive = [signal for signal in every if signal.key.startswith("way")]
    assert len(alive) == 5 + 1 and held in alive


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda signal: pickle.loads(pickle.dumps(signal))]
)
def test_a_copy_of_a_signal_is_that_of_one(
    make: Callable[..., MemorySignals], copied: Callable[[Signal], Signal]
) -> None:
    """However many it is kept among."""
    signals = make()
    for number in range(1_000):
        signals.append("a", [number])
    signal = signals.append("a", ["last"])
    twin = copied(signal)
    assert (twin.key, twin.seq, twin.offset) == ("a", 1_001, 1_001)
    assert (twin.at_ms, twin.value, twin.encoded) == (signal.at_ms, ["last"], b'["last"]')
    assert len(pickle.dumps(twin)) == len(pickle.dumps(signal)) < 200


def bounded(**bounds: int) -> MemorySignals:
    return MemorySignals(clock=MockClock(), limits=Limits(**bounds))


def test_a_dropped_value_takes_no_memory() -> None:
    """Not even if it was the last one that was fired or read."""
    signals = bounded(max_signal_bytes=10_000_000, max_value_bytes=10_000_000)
    tracemalloc.start()
    try:
        signals.append("k", "x" * 5_000_000)
        signals.drop("k")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


@cases("keys, forgotten", [(6, 0), (7, 1), (8, 2)])
def test_twice_as_many_keys_as_signals_are_remembered(keys: int, forgotten: int) -> None:
    """Of keys that are not, cursors from before the last signal of the last one are expired."""
    signals = bounded(max_signals=3)
    for number in range(keys):
        signals.append(f"key {number}", number)
    assert signals.earliest("another") == forgotten


class Aging:
    """Signals that are forgotten after six seconds, by a timer that is advanced in time."""

    def __init__(self, signals: MemorySignals, timer: SystemTimer, clock: MockClock) -> None:
        self.signals = signals
        self.timer = timer
        self.clock = clock
        self.trim = HistoryTrimmer(signals, timer, 6_000)

    def fire(self, key: str) -> None:
        self.signals.append(key, 1)
        self.trim.wake()

    def age(self, ms: int) -> None:
        """Let time pass, advancing at each next expiration."""
        until_ms = self.clock.wall_ms() + ms
        while (next_ms := self.timer.next_expiration_ms()) is not None and next_ms <= until_ms:
            self.clock.advance(max(0, next_ms - self.clock.wall_ms()))
            self.timer.advance_clock()
        self.clock.advance(until_ms - self.clock.wall_ms())


@pytest.fixture
def aging(
    signals: MemorySignals, make_timer: Callable[..., SystemTimer], clock: MockClock
) -> Aging:
    return Aging(signals, make_timer(), clock)


@pytest.mark.parametrize("offset_ms", [0, 1, 1_999, 2_000, 3_500, 5_999])
def test_a_signal_is_kept_for_its_age_and_a_third_more_at_most(
    aging: Aging, offset_ms: int
) -> None:
    """Whenever it came since the trimming began; what is still read expires with an error."""
    signals = aging.signals
    aging.fire("other")
    aging.age(offset_ms)
    cursor = signals.cursor(signals.head())
    aging.fire("a")
    aging.age(6_000)
    assert signals.has_after("a", signals.position("a", cursor), 1)
    aging.age(2_000)
    assert values(signals, "a") == []
    with pytest.raises(CursorExpiredError):
        signals.position("a", cursor)


def test_very_many_are_trimmed_a_few_at_a_time(aging: Aging) -> None:
    """The event loop gets its turn in between; what came meanwhile is kept for its own age."""
    signals = aging.signals
    for number in range(3 * SLICE + 10):
        aging.fire(f"old {number}")
    aging.age(7_999)
    left = [kept(signals)[0]]
    while left[-1]:
        aging.clock.advance(1)
        aging.timer.advance_clock()
        left.append(kept(signals)[0])
        if left[-1] == 10:
            signals.append("new", None)
    assert left[1:5] == [2 * SLICE + 10, SLICE + 10, 10, 1]
    assert 6_000 <= len(left) - 4 <= 8_100 and len(aging.timer) == 0


def test_trimming_by_age_does_not_go_by_the_wall_clock(aging: Aging) -> None:
    """A wall clock that leaps by years forgets nothing, and keeps nothing longer."""
    aging.fire("a")
    aging.clock.set_wall(10**13)
    aging.timer.advance_clock()
    assert values(aging.signals, "a") == [1]
    aging.timer.close()


class Responder(WaitOperation):
    """Notes what it is told."""

    __slots__ = ("seen",)

    seen: list[str]

    def on_complete(self) -> None:
        self.seen = [self.status]

    def on_expiration(self) -> None:
        self.seen.append("expiration")


def test_a_dropped_history_meets_a_condition(signals: MemorySignals) -> None:
    """What is gone counts, however many signals were wanted."""
    signals.append("a", None)
    wait = WaitOperation(1, signals, ("a",), 0, Condition(min_signals=3))
    assert not wait.try_complete()
    signals.drop("a")
    with pytest.raises(NotImplementedError, match=r"WaitOperation does not define on_complete\(\)"):
        wait.try_complete()


@pytest.mark.parametrize("is_trimmed", [True, False])
def test_an_end_that_cannot_be_known_is_outdated(
    clock: MockClock, signals: MemorySignals, is_trimmed: bool
) -> None:
    """At the deadline, of a wait for two keys of which one has lost its history."""
    times = WaitTimes(clock)
    core = DelayedOperationPurgatory("p", SystemTimer(clock=clock), listeners=[times])
    wait = Responder(20, signals, ("a", "b"), (0, 0), Condition(needed_keys=2))
    assert not core.try_complete_else_watch(wait, wait.watched_keys)
    if is_trimmed:
        signals.drop("a")
        core.check_and_complete("a")
    clock.advance(21)
    core.timer.advance_clock()
    assert wait.seen == ([Status.OUTDATED] if is_trimmed else [Status.EXPIRED, "expiration"])
    [kind] = times.kinds.values()
    counts = {status: sum(each.counts) for status, each in kind.by_outcome().items()}
    assert counts.pop(wait.status) == 1 and set(counts.values()) == {0}
    statistics = core.statistics()
    assert (statistics.outdated, statistics.expired) == (is_trimmed, not is_trimmed)
    assert sum(times.lateness.counts) == statistics.expired
