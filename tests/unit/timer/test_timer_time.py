"""Deadlines at the limits, the steps that they cost, and lateness; laws have the rest."""

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


def test_the_system_clock_has_the_time_of_day_in_milliseconds() -> None:
    """As `time.time` has it in seconds, give or take a minute by which it may be corrected."""
    assert abs(SystemClock().wall_ms() / 1_000 - time.time()) < 60


def test_a_far_task_wakes_its_owner_once_a_level_at_the_most(
    make_bench: Callable[..., Bench],
) -> None:
    """Nothing ticks while nothing is due: a day takes as many steps as it takes levels."""
    bench = make_bench(wheel_size=20)
    bench.add(24 * HOUR_MS + 1, "task")
    assert bench.run_out() <= len(bench.timer.wheel.levels())
    assert bench.times() == [1_000 + 24 * HOUR_MS + 1]


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
