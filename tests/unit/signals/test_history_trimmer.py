"""Signals that are forgotten by their age."""

from collections.abc import Callable

import pytest

from purgatory import CursorExpiredError
from purgatory.signals import MemorySignals
from purgatory.signals.history_trimmer import SLICE, HistoryTrimmer
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.unit.signals.kept_signals import kept, values


def age_out(timer: SystemTimer, clock: MockClock, ms: int) -> None:
    """Let time pass, advancing at each next expiration."""
    until_ms = clock.wall_ms() + ms
    while (next_ms := timer.next_expiration_ms()) is not None and next_ms <= until_ms:
        clock.advance(max(0, next_ms - clock.wall_ms()))
        timer.advance_clock()
    clock.advance(until_ms - clock.wall_ms())


@pytest.mark.parametrize("offset_ms", [0, 1, 1_999, 2_000, 3_500, 5_999])
def test_a_signal_is_kept_for_its_age_and_a_third_more_at_most(
    make: Callable[..., MemorySignals],
    make_timer: Callable[..., SystemTimer],
    clock: MockClock,
    offset_ms: int,
) -> None:
    """Whenever it came since the trimming began; what is still read expires with an error."""
    signals, timer = make(), make_timer()
    trim = HistoryTrimmer(signals, timer, 6_000)
    signals.append("other", 1)
    trim.wake()
    age_out(timer, clock, offset_ms)
    cursor = signals.cursor(signals.head())
    signals.append("a", 1)
    trim.wake()
    age_out(timer, clock, 6_000)
    assert signals.has_after("a", signals.position("a", cursor), 1)
    age_out(timer, clock, 2_000)
    assert values(signals, "a") == []
    with pytest.raises(CursorExpiredError):
        signals.position("a", cursor)


def test_very_many_are_trimmed_a_few_at_a_time(
    make: Callable[..., MemorySignals], make_timer: Callable[..., SystemTimer], clock: MockClock
) -> None:
    """The event loop gets its turn in between; what came meanwhile is kept for its own age."""
    signals, timer = make(), make_timer()
    trim = HistoryTrimmer(signals, timer, 6_000)
    for number in range(3 * SLICE + 10):
        signals.append(f"old {number}", None)
    trim.wake()
    age_out(timer, clock, 7_999)
    left = [kept(signals)[0]]
    while left[-1]:
        clock.advance(1)
        timer.advance_clock()
        left.append(kept(signals)[0])
        if left[-1] == 10:
            signals.append("new", None)
    assert left[1:5] == [2 * SLICE + 10, SLICE + 10, 10, 1]
    assert 6_000 <= len(left) - 4 <= 8_100 and len(timer) == 0


def test_a_key_that_fires_all_the_time_is_trimmed_too(
    make: Callable[..., MemorySignals], make_timer: Callable[..., SystemTimer], clock: MockClock
) -> None:
    """What wakes the trimming does not put it off."""
    signals, timer = make(), make_timer()
    trim = HistoryTrimmer(signals, timer, 6_000)
    for number in range(100):
        signals.append("a", number)
        trim.wake()
        age_out(timer, clock, 500)
    assert 12 <= kept(signals)[0] <= 17
    timer.close()


def test_trimming_by_age_does_not_go_by_the_wall_clock(
    make: Callable[..., MemorySignals], make_timer: Callable[..., SystemTimer], clock: MockClock
) -> None:
    """A wall clock that leaps by years forgets nothing, and keeps nothing longer."""
    signals, timer = make(), make_timer()
    trim = HistoryTrimmer(signals, timer, 6_000)
    signals.append("a", 1)
    trim.wake()
    clock.set_wall(10**13)
    timer.advance_clock()
    assert values(signals, "a") == [1]
    timer.close()
