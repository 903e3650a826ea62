"""Deadlines at the limits, the steps that they cost, and lateness; laws have the rest."""

import time
from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import MAX_DELAY_MS, ScheduledCall, SystemClock, SystemTimer, TimerTask
from tests.cases import cases
from tests.unit.timer.timer_bench import HOUR_MS, Bench


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


def test_a_timer_has_256_buckets_a_level_and_a_tick_of_a_millisecond() -> None:
    """As documented."""
    wheel = SystemTimer(clock=MockClock()).wheel
    assert (wheel.wheel_size, wheel.tick_ms) == (256, 1)
