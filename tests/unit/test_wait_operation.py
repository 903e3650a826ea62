"""The parts of WaitOperation that no law covers."""

import pytest

from purgatory import Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.wait_histograms import WaitTimes
from purgatory.signals import Condition, MemorySignals, WaitOperation
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer


class Responder(WaitOperation):
    """Notes what it is told."""

    __slots__ = ("seen",)

    seen: list[str]

    def on_complete(self) -> None:
        self.seen = [self.status]

    def on_expiration(self) -> None:
        self.seen.append("expiration")


@pytest.fixture
def signals(clock: MockClock) -> MemorySignals:
    return MemorySignals(clock=clock)


def test_positions_of_their_own(signals: MemorySignals) -> None:
    """A position for each key is kept; of one key, as if it were for all."""
    assert WaitOperation(1, signals, ("a", "b"), (3, 5)).positions == (3, 5)
    single = WaitOperation(1, signals, ("a",), (3,))
    assert (single.positions, single.position) == ((3,), 3)


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_a_wait_for_several_keys_ends_with_the_last_that_it_needs(
    signals: MemorySignals, needed: int
) -> None:
    """And not with one before, nor with a second signal of the same key."""
    wait = Responder(1, signals, ("a", "b", "c"), 0, Condition(needed_keys=needed))
    for number, key in enumerate("abc", 1):
        signals.append(key, None)
        signals.append(key, None)
        assert wait.try_complete() == (number == needed)
        if number == needed:
            break
    assert wait.seen == [Status.FIRED]


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


def test_whoever_left_is_known_to_have_left(signals: MemorySignals) -> None:
    """So that nothing is sent there; any other end is for a caller that is still there."""

    class Leaving(Responder):
        __slots__ = ()

        def on_complete(self) -> None:
            self.seen = ["gone" if self.is_abandoned else "there"]

    left, cancelled = (Leaving(20, signals, ("a",), 0) for _ in range(2))
    assert left.abandon() and cancelled._cancel(Status.CANCELLED)
    assert (left.seen, cancelled.seen) == (["gone"], ["there"])
    assert left.status is Status.CANCELLED and not left.abandon()
