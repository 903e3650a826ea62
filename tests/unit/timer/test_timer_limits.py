"""Advances in bounded steps: order, and what is pending between two of them."""

from collections.abc import Callable

import pytest

from tests.unit.timer.timer_bench import HOUR_MS, Bench


def test_tasks_run_in_order_of_deadline_and_first_come_within_a_tick(bench: Bench) -> None:
    """However they were added, and from whatever level they come down."""
    for delay_ms in (40, 7, 3, 40, 7, 1, 3, 40):
        bench.add(delay_ms, f"{delay_ms}/{len(bench.timer)}")
    names = ["1/5", "3/2", "3/6", "7/1", "7/4", "40/0", "40/3", "40/7"]
    assert bench.after(100) == names


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_limit_bounds_an_advance_and_loses_nothing(bench: Bench, limit: int) -> None:
    """Each call runs so many at the most, in order, and the next expiration says go on."""
    for number in range(20):
        bench.add(number % 5 * 10, str(number % 5))
    bench.clock.advance(100)
    ran = []
    while len(bench.timer):
        next_ms = bench.timer.next_expiration_ms()
        assert next_ms is not None and next_ms <= bench.clock.wall_ms()
        ran.append(bench.timer.advance_clock(limit))
    assert max(ran) <= limit and sum(ran) == 20
    assert bench.names() == sorted(bench.names())


def test_a_limit_of_nothing_does_nothing(bench: Bench) -> None:
    """The tasks stay due."""
    bench.add(0, "now")
    bench.add(1, "then")
    bench.clock.advance(1)
    assert (bench.timer.advance_clock(0), len(bench.timer)) == (0, 2)
    assert bench.after(0) == ["now", "then"]


def test_a_limit_counts_what_moves_down_a_level(bench: Bench) -> None:
    """A bucket of very many tasks far away does not make one call long."""
    for _ in range(10):
        bench.add(8)
    bench.clock.advance(8)
    for calls in (1, 2, 3):
        before = bench.timer.cascaded
        assert bench.timer.advance_clock(limit=3) == 0
        assert 0 < bench.timer.cascaded - before <= 3, calls
    assert (len(bench.timer), bench.timer.next_expiration_ms() is not None) == (10, True)
    bench.run_out()
    assert len(bench.notes) == 10


def test_tasks_may_be_added_while_a_bucket_is_half_moved(bench: Bench) -> None:
    """Between two limited advances the order of one tick is that of adding all the same."""
    for name in "abcd":
        bench.add(8, name)
    bench.clock.advance(7)
    while bench.timer.next_expiration_ms() == 1_006:
        bench.timer.advance_clock(limit=1)
        bench.add(1, "")
    bench.after(1)
    assert bench.names()[:4] == ["a", "b", "c", "d"]
    bench.run_out()


def test_tasks_may_be_added_between_the_moving_of_a_bucket_and_its_opening(bench: Bench) -> None:
    """A task without delay, added when a limit ended with the move, goes behind what was moved."""
    bench.add(5, "moved")
    bench.clock.advance(5)
    assert bench.timer.advance_clock(limit=1) == 0
    bench.add(0, "without delay")
    assert bench.after(0) == ["moved", "without delay"]


def test_nothing_is_pending_once_a_half_moved_bucket_is_cancelled(bench: Bench) -> None:
    """The next expiration is None iff no task is pending, in the middle of moving too."""
    tasks = [bench.add(8) for _ in range(3)]
    bench.clock.advance(8)
    assert bench.timer.advance_clock(limit=1) == 0
    for task in tasks:
        task.cancel()
    assert (len(bench.timer), bench.timer.next_expiration_ms()) == (0, None)


def test_nothing_is_pending_once_open_buckets_are_cancelled(bench: Bench) -> None:
    """The same for what a limit left in buckets that had opened, and for what is due at once."""
    tasks = [bench.add(delay_ms) for delay_ms in (1, 1, 1, 0, 0)]
    bench.clock.advance(1)
    assert bench.timer.advance_clock(limit=1) == 1
    for task in tasks:
        task.cancel()
    assert (len(bench.timer), bench.timer.next_expiration_ms()) == (0, None)


def test_the_owner_is_told_of_an_earlier_bucket(bench: Bench) -> None:
    """`on_earlier` is called with the time, for the first bucket and for each that is earlier."""
    told: list[int] = []
    bench.timer.on_earlier = told.append
    for delay_ms in (5, 5, 9, 2, 7, 1):
        bench.add(delay_ms)
    assert told == [1_005, 1_002, 1_001]
    bench.run_out()


def test_the_owner_is_told_of_a_task_that_is_due_at_once(bench: Bench) -> None:
    """An owner that sleeps until a far bucket hears of a task without delay."""
    bench.add(HOUR_MS)
    bench.timer.advance_clock()
    told: list[int] = []
    bench.timer.on_earlier = told.append
    bench.add(0, "now")
    assert told and min(told) <= bench.clock.wall_ms()
    bench.add(0, "now, too")
    assert len(told) == 1
    bench.timer.close()


def test_the_owner_is_not_told_of_a_task_that_joins_what_is_due(bench: Bench) -> None:
    """It has been told of that bucket, or has found it after its last advance."""
    bench.add(5, "moved")
    bench.clock.advance(5)
    assert bench.timer.advance_clock(limit=1) == 0
    told: list[int] = []
    bench.timer.on_earlier = told.append
    bench.add(0, "without delay")
    assert told == []
    bench.run_out()


@pytest.mark.parametrize("limit", range(1, 12))
def test_close_keeps_the_order_wherever_a_limit_stopped(bench: Bench, limit: int) -> None:
    """In the middle of running, and in the middle of moving a bucket down."""
    for delay_ms in (1, 1, 9, 12, 10, 17, 0):
        bench.add(delay_ms)
    bench.clock.advance(20)
    ran = bench.timer.advance_clock(limit)
    closed = bench.timer.close()
    deadlines = [task.expiration_ms for task in closed]
    assert len(closed) == 7 - ran and deadlines == sorted(deadlines)


def test_a_bucket_that_is_half_moved_stays_where_it_is_while_the_clock_leaps(
    make_bench: Callable[..., Bench],
) -> None:
    """A task that is added then must not share the bucket of one that has yet to move down."""
    bench = make_bench(wheel_size=8)
    bench.add(15, "late")
    bench.add(9, "early")
    bench.clock.advance(8)
    assert bench.timer.advance_clock(limit=1) == 0
    bench.clock.advance(6)
    bench.add(3, "new")
    assert bench.after(0) == ["early"]
    assert (bench.after(1), bench.after(1), bench.after(1)) == (["late"], [], ["new"])


def test_an_open_bucket_stays_before_what_is_added_while_the_clock_leaps(
    make_bench: Callable[..., Bench],
) -> None:
    """A limit has interrupted it; the tasks that are added are due later."""
    bench = make_bench(wheel_size=8)
    for name in ("first", "second"):
        bench.add(1, name)
    bench.clock.advance(1)
    assert bench.timer.advance_clock(limit=1) == 1
    bench.clock.advance(6)
    bench.add(1, "later")
    bench.add(0, "at once")
    assert bench.timer.next_expiration_ms() == 1_001
    assert bench.after(1) == ["second", "at once", "later"]
