"""Cases 1-10 of Kafka's TimingWheel, and what is ours: FIFO while cascading, and its errors."""

from collections.abc import Callable

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


def test_an_entry_in_the_future_is_accepted_and_its_bucket_queued() -> None:
    """Case 1: an entry is taken, counted, and its bucket stands in the queue."""
    wheel = TimingWheel(10, 5, 1000)
    assert wheel.add(Entry(1020))
    assert (wheel.queue, wheel.pending.count, wheel.next_expiration_ms()) == ([1020], 1, 1020)


def test_a_second_entry_of_the_bucket_does_not_queue_it_again() -> None:
    """A bucket is queued once a round, by its start, however many entries it gets."""
    wheel = TimingWheel(10, 5, 1000)
    assert wheel.add(Entry(1020)) and wheel.add(Entry(1029))
    assert (wheel.queue, wheel.pending.count) == ([1020], 2)


def test_an_entry_in_the_past_is_refused() -> None:
    """Case 2: what expired before the wheel's time is due already."""
    wheel = TimingWheel(10, 5, 1000)
    assert not wheel.add(Entry(999))
    assert (wheel.queue, wheel.pending.count) == ([], 0)


def test_a_cancelled_entry_is_refused() -> None:
    """Case 3: an entry that was cancelled before it is added does not get in."""
    wheel = TimingWheel(10, 5, 1000)
    entry = Entry(1020)
    assert wheel.add(entry) and entry.cancel()
    assert not wheel.add(entry)
    assert wheel.pending.count == 0


def test_an_entry_of_the_current_tick_is_refused() -> None:
    """Case 4: the current tick is due, the next one is not."""
    wheel = TimingWheel(10, 5, 1000)
    taken = [wheel.add(Entry(time_ms)) for time_ms in (1000, 1005, 1009, 1010)]
    assert taken == [False, False, False, True]


def test_time_moves_by_whole_ticks() -> None:
    """Case 5: the wheel's time is rounded down to a tick, and never steps back."""
    wheel = TimingWheel(10, 5, 1000)
    times = []
    for time_ms in (1005, 1010, 1003, 1019):
        wheel.advance_clock(time_ms)
        times.append(wheel.current_ms)
    assert times == [1000, 1010, 1010, 1010]


def test_a_start_between_two_ticks_is_rounded_down() -> None:
    """A wheel that starts at 1007 with ticks of 10 is at 1000."""
    assert TimingWheel(10, 5, 1007).current_ms == 1000


def test_the_overflow_wheel_is_made_once_and_when_needed() -> None:
    """Case 6: the first entry beyond the span makes the overflow wheel, the second uses it."""
    wheel = TimingWheel(10, 5, 1000)
    assert wheel.add(Entry(1049)) and wheel.levels() == [wheel]
    assert wheel.add(Entry(1060))
    _, overflow = wheel.levels()
    assert (overflow.tick_ms, overflow.wheel_size, overflow.interval_ms) == (50, 5, 250)
    assert wheel.add(Entry(1061)) and wheel.levels() == [wheel, overflow]


def test_levels_advance_together_each_by_its_own_tick() -> None:
    """Case 6: at 1060 the lowest wheel is at 1060 and the overflow wheel at 1050."""
    wheel = TimingWheel(10, 5, 1000)
    wheel.add(Entry(1060))
    wheel.advance_clock(1060)
    assert [level.current_ms for level in wheel.levels()] == [1060, 1050]


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


def test_upper_levels_stand_still_until_their_tick_has_passed() -> None:
    """Case 7: level 1 moves each ms, level 2 at c+3, level 3 at c+9."""
    wheel = TimingWheel(1, 3, C)
    wheel.add(Entry(C + 26))
    moves = []
    for time_ms in range(C, C + 10):
        wheel.advance_clock(time_ms)
        moves.append([level.current_ms - C for level in wheel.levels()])
    assert [m[0] for m in moves] == list(range(10))
    assert [m[1] for m in moves] == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert [m[2] for m in moves] == [0] * 9 + [9]


def test_the_bucket_that_was_current_serves_the_end_of_the_next_round() -> None:
    """Case 7: at c+1 the bucket that was [c] becomes [c+3]; before, c+3 was for level 2."""
    wheel = TimingWheel(1, 3, C)
    wheel.add(Entry(C + 3))
    assert level_starts(wheel) == [[], [C + 3]]
    wheel.advance_clock(C + 1)
    wheel.add(Entry(C + 3))
    assert level_starts(wheel) == [[C + 3], [C + 3]]
    assert wheel.bucket_for(C) is wheel.bucket_for(C + 3)


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


def test_a_task_sits_in_the_level_of_its_delay() -> None:
    """Case 8: 10 ms is in level 1, 350 ms in level 2, 450 ms in level 3, in bucket [400, 800)."""
    wheel = TimingWheel(1, 20, 0)
    for delay_ms in (10, 350, 450):
        assert wheel.add(Entry(delay_ms))
    assert level_starts(wheel) == [[10], [340], [400]]


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


def test_a_wheel_wraps_around() -> None:
    """Case 9: (90 + 30) mod 100 is slot 20, whose first round is over by then."""
    wheel = TimingWheel(1, 100, 0)
    wheel.advance_clock(90)
    assert wheel.add(Entry(120))
    assert wheel.overflow is None
    assert wheel.bucket_for(120) is wheel.bucket_for(20)


def test_a_slot_never_holds_two_rounds() -> None:
    """Case 9: while 20 is still to come, 120 waits one level up instead of in the same slot."""
    wheel = TimingWheel(1, 100, 0)
    assert wheel.add(Entry(20)) and wheel.add(Entry(120))
    assert level_starts(wheel) == [[20], [100]]


def test_ten_seconds_by_eight() -> None:
    """Case 10: 100 s is in the second wheel; 700 s is in the third, in [640, 1280)."""
    wheel = TimingWheel(10_000, 8, 0)
    assert wheel.add(Entry(100_000)) and wheel.add(Entry(700_000))
    assert level_starts(wheel) == [[], [80_000], [640_000]]


def test_seven_hundred_seconds_move_down_twice_at_once() -> None:
    """Case 10: at 640 s the task moves down two levels, and it runs at 700 s."""
    clock = MockClock()
    timer = SystemTimer(tick_ms=10_000, wheel_size=8, clock=clock)
    notes: list[tuple[str, int]] = []
    timer.add(Noting(700_000, notes, clock))
    assert steps(timer, clock) == [640_000, 700_000]
    assert notes == [("", 700_000)]


def test_a_bucket_whose_tasks_were_all_cancelled_is_forgotten() -> None:
    """The next expiration is that of a bucket with a task in it; empty ones leave the queue."""
    wheel = TimingWheel(10, 5, 1000)
    first, second = Entry(1020), Entry(1060)
    assert wheel.add(first) and wheel.add(second)
    first.cancel()
    assert wheel.next_expiration_ms() == 1050
    second.cancel()
    assert (wheel.next_expiration_ms(), wheel.queue, wheel.pending.count) == (None, [], 0)


def test_clear_returns_every_task_in_order_of_expiration() -> None:
    """Clearing empties every level, and the wheel can be used again."""
    wheel = TimingWheel(1, 3, 0)
    entries = {time_ms: Entry(time_ms) for time_ms in (20, 1, 7, 2, 26, 4)}
    for entry in entries.values():
        assert wheel.add(entry)
    assert wheel.clear() == [entries[time_ms] for time_ms in sorted(entries)]
    assert (wheel.pending.count, wheel.queue, wheel.next_expiration_ms()) == (0, [], None)
    assert level_starts(wheel) == [[], [], []]
    assert wheel.add(entries[2]) and wheel.next_expiration_ms() == 2


@pytest.mark.parametrize(
    ("far_ms", "near_ms"), [(3, 1), (8, 2), (26, 9), (26, 25)], ids="{}".format
)
def test_tasks_of_one_tick_run_in_the_order_in_which_they_were_added(
    make_timer: Callable[..., SystemTimer], clock: MockClock, far_ms: int, near_ms: int
) -> None:
    """What was added first, into an upper level, runs before what came later into the lowest."""
    timer = make_timer(tick_ms=1, wheel_size=3)
    notes: list[tuple[str, int]] = []
    due_ms = clock.wall_ms() + far_ms

    def add(name: str) -> None:
        task = Noting(due_ms - clock.wall_ms(), notes, clock)
        task.name = name
        timer.add(task)

    add("far 1")
    add("far 2")
    clock.advance(far_ms - near_ms)
    timer.advance_clock()
    add("near 1")
    add("near 2")
    steps(timer, clock)
    assert notes == [(name, due_ms) for name in ("far 1", "far 2", "near 1", "near 2")]


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
