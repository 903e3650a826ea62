"""Cases 16, 19 and 20 of Kafka's SystemTimer: deadlines, clocks that step, and lateness."""

import time
from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import MAX_DELAY_MS, ScheduledCall, SystemClock, SystemTimer, TimerTask
from tests.cases import cases
from tests.unit.timer.timer_bench import HOUR_MS, Bench


@pytest.mark.parametrize("wheel_size", [3, 256])
def test_a_short_delay_after_an_idle_hour_runs_on_time(
    make_bench: Callable[..., Bench], wheel_size: int
) -> None:
    """Case 16: the wheel's time is caught up, and the task runs to the millisecond."""
    bench = make_bench(wheel_size=wheel_size)
    bench.clock.advance(HOUR_MS)
    bench.add(7, "task")
    bench.run_out()
    assert bench.notes == [("task", 1_000 + HOUR_MS + 7)]


def test_a_short_delay_after_an_idle_hour_takes_no_detour(
    make_bench: Callable[..., Bench],
) -> None:
    """It lies in the lowest wheel, so that one step is enough."""
    bench = make_bench(wheel_size=256)
    bench.clock.advance(HOUR_MS)
    bench.add(7, "task")
    assert bench.run_out() == 1
    assert bench.timer.wheel.overflow is None


def test_a_short_delay_takes_no_detour_beside_a_far_task(
    make_bench: Callable[..., Bench],
) -> None:
    """The wheel's time is caught up to where the far one has its bucket, and no further."""
    bench = make_bench(wheel_size=256)
    bench.add(HOUR_MS * 3 // 2, "far")
    bench.clock.advance(HOUR_MS)
    bench.add(7, "task")
    assert (bench.step(), bench.names(), bench.timer.cascaded) == (1, ["task"], 0)
    bench.run_out()
    assert bench.times() == [1_000 + HOUR_MS + 7, 1_000 + HOUR_MS * 3 // 2]


def test_times_are_whole_milliseconds_after_an_idle_hour_too(
    make_bench: Callable[..., Bench],
) -> None:
    """Of a clock that is between two of them, and of one that has stepped back since."""
    bench = make_bench(wheel_size=256)
    bench.clock.advance(HOUR_MS + 0.5)
    bench.add(7, "task")
    bench.clock.advance(-500)
    now_ms = bench.timer.now_ms()
    assert (now_ms, type(now_ms)) == (1_000 + HOUR_MS, int)
    bench.run_out()


def test_the_system_clock_has_the_time_of_day_in_milliseconds() -> None:
    """As `time.time` has it in seconds, give or take a minute by which it may be corrected."""
    assert abs(SystemClock().wall_ms() / 1_000 - time.time()) < 60


def test_what_is_overdue_is_not_lost_when_the_time_is_caught_up(bench: Bench) -> None:
    """A task that is added late does not take the slot of one that is still to run."""
    bench.add(1, "overdue")
    bench.clock.advance(3)
    bench.add(1, "new")
    assert bench.timer.next_expiration_ms() == 1_001
    assert (bench.after(0), bench.after(1)) == (["overdue"], ["new"])


def test_a_far_task_wakes_its_owner_once_a_level_at_the_most(
    make_bench: Callable[..., Bench],
) -> None:
    """Nothing ticks while nothing is due: a day takes as many steps as it takes levels."""
    bench = make_bench(wheel_size=20)
    bench.add(24 * HOUR_MS + 1, "task")
    assert bench.run_out() <= len(bench.timer.wheel.levels())
    assert bench.times() == [1_000 + 24 * HOUR_MS + 1]


@pytest.mark.parametrize("start_ms", [0, 1, 50, 99])
def test_never_early_and_less_than_a_tick_late(
    make_timer: Callable[..., SystemTimer], clock: MockClock, start_ms: int
) -> None:
    """Case 19, where Kafka's are up to a tick early: ticks of 100, delays 30, 99, 150, 250."""
    bench = Bench(make_timer(tick_ms=100, wheel_size=3), clock, [])
    clock.advance(start_ms)
    added_ms = clock.wall_ms()
    delays = (30, 99, 150, 250)
    for delay_ms in delays:
        bench.add(delay_ms)
    bench.run_out()
    late = [ran_ms - added_ms - delay for ran_ms, delay in zip(bench.times(), delays, strict=True)]
    assert all(0 <= late_ms < 100 for late_ms in late)


def test_a_deadline_between_two_ticks_of_the_clock_is_rounded_up(bench: Bench) -> None:
    """Nanoseconds count: a task added half a millisecond late runs half a millisecond late."""
    bench.clock.advance_ns(1)
    task = bench.add(5, "task")
    assert task.expiration_ms == 1_006
    assert bench.after(5) == []
    bench.clock.advance_ns(999_998)
    assert (bench.after(0), bench.timer.next_expiration_ms()) == ([], 1_006)
    bench.clock.advance_ns(1)
    assert bench.after(0) == ["task"]


@cases("start_ns", [0, 1, 2, 999_999, 1_000_000, 1_000_001])
def test_the_first_task_of_a_clock_near_zero_is_not_early(start_ns: int) -> None:
    """Clocks count from an arbitrary zero; the first deadline is rounded up as any other is."""
    clock = MockClock()
    clock.advance_ns(start_ns)
    timer = SystemTimer(clock=clock)
    ran_ns: list[int] = []
    timer.call_later(5, lambda: ran_ns.append(clock.now_ns()))
    deadline_ms = timer.next_expiration_ms()
    assert deadline_ms is not None
    clock.advance_ns(deadline_ms * 1_000_000 - start_ns)
    assert timer.advance_clock() == 1
    assert 0 <= ran_ns[0] - start_ns - 5_000_000 < 1_000_000


@cases("delay_ms", [MAX_DELAY_MS + 1, 2**63 - 1, 2**100])
def test_a_delay_beyond_the_limit_is_refused(bench: Bench, delay_ms: int) -> None:
    """Case 20, where Kafka's overflows and runs at once: a clear error, and nothing is added."""
    with pytest.raises(ValueError, match=f"delay_ms is {delay_ms}, beyond the limit"):
        bench.add(delay_ms)
    assert len(bench.timer) == 0


def test_a_delay_beyond_the_limit_leaves_a_pending_task_as_it_was(bench: Bench) -> None:
    """A reschedule that is refused changes nothing."""
    task = bench.add(5, "task")
    task.delay_ms = MAX_DELAY_MS + 1
    with pytest.raises(ValueError, match="beyond the limit"):
        bench.timer.add(task)
    assert (len(bench.timer), bench.after(5)) == (1, ["task"])


def test_the_longest_delay_runs_to_the_millisecond(bench: Bench) -> None:
    """A hundred years take a few steps in a wheel of three buckets."""
    bench.add(MAX_DELAY_MS, "task")
    assert bench.run_out() <= len(bench.timer.wheel.levels())
    assert bench.times() == [1_000 + MAX_DELAY_MS]


def test_the_longest_delay_of_a_call_is_that_of_a_task(bench: Bench) -> None:
    """Whether the timer makes it or the caller does."""
    bench.timer.call_later(MAX_DELAY_MS, print)
    bench.timer.add(ScheduledCall(MAX_DELAY_MS, print))
    with pytest.raises(ValueError, match="beyond the limit"):
        bench.timer.call_later(MAX_DELAY_MS + 1, print)
    with pytest.raises(ValueError, match="beyond the limit"):
        ScheduledCall(MAX_DELAY_MS + 1, print)
    assert [call.expiration_ms for call in bench.timer.close()] == [1_000 + MAX_DELAY_MS] * 2


@cases("delay_ms", [1.0, 2.5, float("nan"), float("inf"), True, "5", None])
def test_a_delay_is_a_whole_number(bench: Bench, delay_ms: int) -> None:
    """Anything else is a TypeError at once, when the task is made or the call is scheduled."""
    with pytest.raises(TypeError, match="not an int"):
        TimerTask(delay_ms)
    with pytest.raises(TypeError, match="not an int"):
        bench.timer.call_later(delay_ms, print)
    assert len(bench.timer) == 0


def test_a_clock_that_steps_back_is_ignored(bench: Bench) -> None:
    """Time stands still until the clock has caught up; nothing is early, nothing is lost."""
    bench.add(10, "ten")
    bench.clock.advance(9)
    bench.timer.advance_clock()
    bench.clock.advance(-500)
    assert bench.timer.now_ms() == 1_009
    assert bench.after(0) == []
    assert bench.add(3, "three").expiration_ms == 1_012
    bench.clock.advance(500)
    assert (bench.after(1), bench.after(1), bench.after(1)) == (["ten"], [], ["three"])


def test_a_clock_that_steps_back_makes_nothing_early(bench: Bench) -> None:
    """In the middle of an advance that a limit cut short, in the slot of a task still to come."""
    bench.clock.advance(0.5)
    bench.add(4, "1005")
    bench.add(5, "1006")
    bench.clock.advance(4.5)
    assert bench.timer.advance_clock(limit=2) == 0
    bench.clock.advance(-4.5)
    bench.add(2, "added after the step back")
    bench.clock.advance(4.5)
    assert "1006" not in bench.after(0)
    assert bench.after(1) == ["1006"]
    assert len(bench.timer) == 0


@pytest.mark.parametrize("is_call", [False, True])
def test_a_delay_counts_from_a_clock_that_has_stepped_back(
    make_bench: Callable[..., Bench], *, is_call: bool
) -> None:
    """Unless the timer has advanced beyond it: a reading alone does not make tasks late."""
    bench = make_bench(wheel_size=256)
    bench.add(100, "before")
    bench.clock.advance(50)
    bench.add(100, "at the reading")
    bench.clock.advance(-20)
    if is_call:
        bench.timer.call_later(10, bench.notes.append, ("after", 1_040))
    else:
        bench.add(10, "after")
    assert bench.after(9) == []
    assert bench.after(1) == ["after"]
    bench.run_out()


def test_a_timer_has_256_buckets_a_level_and_a_tick_of_a_millisecond() -> None:
    """As documented."""
    wheel = SystemTimer(clock=MockClock()).wheel
    assert (wheel.wheel_size, wheel.tick_ms) == (256, 1)


def test_a_clock_that_leaps_runs_what_became_due_in_order(bench: Bench) -> None:
    """After a machine was suspended everything that is due runs, in order, in bounded batches."""
    for delay_ms in (500, 1, 90_000, 30, 7, 7_200_000):
        bench.add(delay_ms, str(delay_ms))
    bench.clock.advance(HOUR_MS)
    ran = []
    while (bench.timer.next_expiration_ms() or 0) <= bench.clock.wall_ms():
        ran.append(bench.timer.advance_clock(limit=2))
    assert max(ran) <= 2
    assert bench.names() == ["1", "7", "30", "500", "90000"]
    bench.timer.close()


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_the_lateness_is_that_of_the_run(bench: Bench, limit: int | None) -> None:
    """How late the last task of a bucket ran is kept, at the worst, wherever a limit ends."""
    bench.add(5)
    bench.step()
    assert bench.timer.longest_lateness_ms == 0
    bench.add(5)
    bench.clock.advance(12)
    while len(bench.timer):
        bench.timer.advance_clock(limit)
    assert bench.timer.longest_lateness_ms == 7


def test_cancelled_tasks_are_not_late(bench: Bench) -> None:
    """A bucket in which all were cancelled does not count: nothing of it ran."""
    for delay_ms in (2, 5, HOUR_MS):
        task = bench.add(delay_ms)
        assert task.cancel()
        bench.clock.advance(2 * delay_ms)
        assert bench.timer.advance_clock() == 0
    assert (bench.timer.longest_lateness_ms, bench.timer.next_expiration_ms()) == (0, None)


def test_the_lateness_does_not_grow_while_nothing_is_due(
    make_bench: Callable[..., Bench],
) -> None:
    """An advance that a limit ended with the last task of a bucket has run all of it, on time."""
    bench = make_bench(wheel_size=256)
    for _ in range(4):
        bench.add(5)
    bench.clock.advance(5)
    assert bench.timer.advance_clock(limit=4) == 4
    bench.clock.advance(HOUR_MS)
    bench.timer.advance_clock()
    assert bench.timer.longest_lateness_ms == 0
