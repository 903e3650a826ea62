"""Cases of Kafka's TimingWheel, and errors of ours; its laws are those of the timer."""

import pytest

from purgatory.timer import TimingWheel
from tests.cases import cases


@cases("tick_ms", [0, -1, 1.5, True, "1", None])
def test_a_tick_is_a_whole_number_of_at_least_one(tick_ms: int) -> None:
    """Anything else is refused at once."""
    with pytest.raises(ValueError, match="tick_ms"):
        TimingWheel(tick_ms, 5, 0)


@cases("wheel_size", [1, 0, -1, 2.0, True, "2", None])
def test_a_wheel_has_at_least_two_buckets(wheel_size: int) -> None:
    """Anything else is refused at once: one bucket has no span to overflow from."""
    with pytest.raises(ValueError, match="wheel_size"):
        TimingWheel(1, wheel_size, 0)
    assert TimingWheel(1, 2, 0).interval_ms == 2


def test_time_moves_by_whole_ticks() -> None:
    """Case 5: the wheel's time is rounded down to a tick, and never steps back."""
    wheel = TimingWheel(10, 5, 1000)
    times = []
    for time_ms in (1005, 1010, 1003, 1019):
        wheel.advance_clock(time_ms)
        times.append(wheel.current_ms)
    assert times == [1000, 1010, 1010, 1010]
