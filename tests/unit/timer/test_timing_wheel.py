"""Cases of Kafka's TimingWheel, and errors of ours; its laws are those of the timer."""

import pytest

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer, TimerTask, TimingWheel
from tests.cases import cases


class Entry(TimerTask):
    """A task with an expiration, as a wheel takes it."""

    def __init__(self, expiration_ms: int) -> None:
        super().__init__(0)
        self.expiration_ms = expiration_ms


class Noting(TimerTask):
    """Notes its name and the time when it runs."""

    def __init__(self, delay_ms: int, notes: list[tuple[str, int]], clock: MockClock) -> None:
        super().__init__(delay_ms)
        self.notes = notes
        self.clock = clock
        self.name = ""

    def run(self) -> None:
        self.notes.append((self.name, self.clock.wall_ms()))


def level_starts(wheel: TimingWheel) -> list[list[int]]:
    """The starts of the buckets in use, level by level."""
    return [sorted(b.expiration_ms for b in level.buckets()) for level in wheel.levels()]


def steps(timer: SystemTimer, clock: MockClock) -> list[int]:
    """Advance to each next expiration until nothing is pending; return those times."""
    times = []
    while (next_ms := timer.next_expiration_ms()) is not None:
        clock.advance(next_ms - clock.wall_ms())
        timer.advance_clock()
        times.append(next_ms)
        assert len(times) < 100
    return times


C = 900  # a multiple of 27, as the example of Kafka's TimingWheel assumes


def test_the_buckets_of_three_levels() -> None:
    """Case 7: with u = 1 and n = 3, each level begins where the one below it ends."""
    wheel = TimingWheel(1, 3, C)
    taken = [wheel.add(Entry(time_ms)) for time_ms in range(C, C + 27)]
    assert taken == [False] + [True] * 26
    # The first bucket of every level holds nothing: what falls into it belongs further down.
    assert level_starts(wheel) == [[C + 1, C + 2], [C + 3, C + 6], [C + 9, C + 18]]
    sizes = [sorted(len(bucket) for bucket in level.buckets()) for level in wheel.levels()]
    assert sizes == [[1, 1], [3, 3], [9, 9]]


def test_the_spans_of_kafkas_geometry() -> None:
    """Case 8: ticks of 1 ms and 20 buckets span 20 ms, 400 ms, 8 s, 160 s, 3,200 s, 64,000 s."""
    wheel = TimingWheel(1, 20, 0)
    assert wheel.add(Entry(63_999_999))
    assert [level.interval_ms for level in wheel.levels()] == [
        20,
        400,
        8_000,
        160_000,
        3_200_000,
        64_000_000,
    ]


def test_a_task_moves_down_through_the_levels_and_runs_on_time() -> None:
    """Case 8: 450 ms opens at 400, at 440, and runs at 450; 350 ms opens at 340, runs at 350."""
    clock = MockClock()
    timer = SystemTimer(tick_ms=1, wheel_size=20, clock=clock)
    notes: list[tuple[str, int]] = []
    for delay_ms in (450, 350, 10):
        task = Noting(delay_ms, notes, clock)
        task.name = str(delay_ms)
        timer.add(task)
    assert steps(timer, clock) == [10, 340, 350, 400, 440, 450]
    assert notes == [("10", 10), ("350", 350), ("450", 450)]


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
