"""What a timer does with tasks that fail, move, or were closed with it; laws have the rest."""

import logging
from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import ScheduledCall, SystemTimer, TimerTask
from tests.cases import cases
from tests.unit.timer.timer_bench import HOUR_MS, Bench, Note


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 100])
def test_what_was_cancelled_counts_neither_as_moved_nor_as_run(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    """Wherever in the bucket it was, wherever a limit cuts, and if one of the others fails."""
    bench = make_bench(wheel_size=256)
    tasks = [bench.add(300, str(number)) for number in range(10)]

    def fail() -> None:
        raise ValueError

    tasks[5].then = fail
    for number in (0, 3, 4, 9):
        tasks[number].cancel()
    bench.clock.advance(300)
    ran = []
    while (next_ms := bench.timer.next_expiration_ms()) is not None and next_ms <= 1_300:
        ran.append(bench.timer.advance_clock(limit))
        assert ran[-1] <= limit and sum(ran) == 6 - len(bench.timer)
    assert (sum(ran), bench.timer.cascaded) == (6, 6)


def test_a_task_that_raises_stops_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Case 17: the error is logged with its task, and the tasks behind it run."""

    class Failing(Note):
        def run(self) -> None:
            super().run()
            raise ZeroDivisionError("on purpose")

        def __repr__(self) -> str:
            return "<the failing one>"

    bench.add(5, "before")
    bench.timer.add(Failing(bench, 5, "failing"))
    bench.add(5, "after")
    bench.add(6, "later")
    bench.clock.advance(6)
    assert bench.timer.advance_clock() == 4
    assert bench.names() == ["before", "failing", "after", "later"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.name == "purgatory.timer"
    assert "<the failing one>" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_what_a_base_exception_interrupts_goes_on_at_the_next_advance(bench: Bench) -> None:
    """A KeyboardInterrupt in a task comes out of the advance, and no other task is lost."""

    def interrupt() -> None:
        bench.add(0, "zero")
        raise KeyboardInterrupt

    bench.add(5, "interrupted", interrupt)
    bench.add(5, "after")
    bench.add(6, "later")
    bench.clock.advance(6)
    with pytest.raises(KeyboardInterrupt):
        bench.timer.advance_clock()
    assert (len(bench.timer), bench.timer.next_expiration_ms()) == (3, 1_005)
    assert bench.timer.advance_clock() == 3
    assert bench.names() == ["interrupted", "after", "later", "zero"]


def test_a_task_has_to_define_run() -> None:
    """A subclass without `run` says so by name."""
    with pytest.raises(NotImplementedError, match=r"TimerTask does not define run\(\)"):
        TimerTask(0).run()


def test_close_returns_what_was_pending_in_order(bench: Bench) -> None:
    """Nothing of it runs, nothing is left, and nobody waits unknown to the caller."""
    for delay_ms in (40, 0, 7, 3, 500):
        bench.add(delay_ms, str(delay_ms))
    closed = bench.timer.close()
    assert [task.delay_ms for task in closed] == [0, 3, 7, 40, 500]
    assert not any(task.is_pending for task in closed)
    assert (len(bench.timer), bench.timer.next_expiration_ms(), bench.notes) == (0, None, [])
    assert bench.after(HOUR_MS) == []


def test_a_timer_without_tasks_is_still_true(bench: Bench) -> None:
    """Its length is its number of tasks, its truth is not."""
    assert len(bench.timer) == 0 and bench.timer


def test_a_call_is_made_with_its_arguments(bench: Bench) -> None:
    """`call_later` returns what can cancel it."""
    calls: list[object] = []
    bench.timer.call_later(5, calls.append, "kept")
    cancelled = bench.timer.call_later(5, calls.append, "cancelled")
    assert cancelled.cancel()
    bench.after(5)
    assert calls == ["kept"]


@cases("tick_ms", [1, 2, 7])
def test_a_call_later_is_a_call_that_is_added(tick_ms: int) -> None:
    """Written out for speed, it comes to the same: on every level, at every time, in order."""
    clock = MockClock(1_000)
    timer = SystemTimer(tick_ms=tick_ms, wheel_size=16, clock=clock)
    ran: list[tuple[int, str]] = []
    for number, delay_ms in enumerate([-1, 0, 1, 5, 100, 100, 3_000, 100_000, 5] * 20):
        later = timer.call_later(delay_ms, ran.append, (number, "later"))
        added = ScheduledCall(delay_ms, ran.append, (number, "added"))
        timer.add(added)
        assert (later.expiration_ms, later.delay_ms) == (added.expiration_ms, delay_ms)
        assert later.is_pending and len(timer) == 2 * (number + 1)
        clock.advance(0.3)
    tasks = timer.close()
    assert len(tasks) == 2 * (number + 1)
    for task in tasks:
        task.run()
    assert [number for number, _ in ran[::2]] == [number for number, _ in ran[1::2]]
    assert {kind for _, kind in ran[::2]} == {"later"}


@cases("options", [{"tick_ms": 0}, {"wheel_size": 1}, {"tick_ms": 1.5}])
def test_a_timer_refuses_a_geometry_that_makes_no_sense(
    clock: MockClock, options: dict[str, int]
) -> None:
    """As its wheel does."""
    with pytest.raises(ValueError, match="give a whole number"):
        SystemTimer(clock=clock, **options)
