"""Cases 13-20 of Kafka's SystemTimer, at Kafka's tick of 1 ms and 3 buckets, and what is ours."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from purgatory import MAX_DELAY_MS, SystemTimer, TimerTask
from purgatory.testing import MockClock
from purgatory.timer import ScheduledCall

HOUR_MS = 3_600_000


class Note(TimerTask):
    """Notes its name and when it ran, then does what it was told to do."""

    def __init__(self, bench: "Bench", delay_ms: int, name: str) -> None:
        super().__init__(delay_ms)
        self.bench = bench
        self.name = name
        self.then: Callable[[], object] = lambda: None

    def run(self) -> None:
        self.bench.notes.append((self.name, self.bench.clock.wall_ms()))
        self.then()


@dataclass
class Bench:
    """A timer, its clock, and the tasks that ran, each with the time."""

    timer: SystemTimer
    clock: MockClock
    notes: list[tuple[str, int]]

    def add(self, delay_ms: int, name: str = "", then: Callable[[], object] | None = None) -> Note:
        task = Note(self, delay_ms, name)
        if then is not None:
            task.then = then
        self.timer.add(task)
        return task

    def step(self) -> int:
        """Move the clock to the next expiration and advance; return how many tasks ran."""
        next_ms = self.timer.next_expiration_ms()
        assert next_ms is not None
        self.clock.advance(max(0, next_ms - self.clock.wall_ms()))
        return self.timer.advance_clock()

    def run_out(self) -> int:
        """Step until nothing is pending; return how many steps that took."""
        steps = 0
        while len(self.timer):
            self.step()
            steps += 1
            assert steps < 1_000
        return steps

    def after(self, ms: int) -> list[str]:
        """Let time pass in one leap; return the names of what ran."""
        self.clock.advance(ms)
        before = len(self.notes)
        self.timer.advance_clock()
        return self.names()[before:]

    def names(self) -> list[str]:
        return [name for name, _ in self.notes]

    def times(self) -> list[int]:
        return [time_ms for _, time_ms in self.notes]


@pytest.fixture
def make_bench(make_timer: Callable[..., SystemTimer], clock: MockClock) -> Callable[..., Bench]:
    def make(tick_ms: int = 1, wheel_size: int = 3) -> Bench:
        return Bench(make_timer(tick_ms=tick_ms, wheel_size=wheel_size), clock, [])

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


def test_delays_below_zero_run_at_the_next_advance(bench: Bench) -> None:
    """Case 13: nothing runs inside `add`, and everything due at the next advance, in order."""
    for delay_ms in range(-5, 1):
        bench.add(delay_ms, str(delay_ms))
    assert (len(bench.timer), bench.notes) == (6, [])
    assert bench.timer.next_expiration_ms() == 1_000
    assert bench.timer.advance_clock() == 6
    assert bench.names() == ["-5", "-4", "-3", "-2", "-1", "0"]


def test_a_task_that_is_added_again_is_rescheduled(bench: Bench) -> None:
    """Case 14: it is pending once, for the later of the two times."""
    task = bench.add(5, "task")
    bench.after(4)
    bench.timer.add(task)
    assert len(bench.timer) == 1
    assert (bench.after(4), bench.after(1)) == ([], ["task"])


def test_a_task_that_is_added_again_may_become_earlier(bench: Bench) -> None:
    """A new delay counts from the moment of the second `add`."""
    task = bench.add(HOUR_MS, "task")
    task.delay_ms = 2
    bench.timer.add(task)
    assert (len(bench.timer), bench.after(2), len(bench.timer)) == (1, ["task"], 0)


def test_a_task_that_is_added_again_goes_behind_the_others_of_its_tick(bench: Bench) -> None:
    """Its place in the order is that of its last `add`."""
    first = bench.add(5, "first")
    bench.add(5, "second")
    bench.timer.add(first)
    assert bench.after(5) == ["second", "first"]


def test_a_cancelled_task_may_be_added_again(bench: Bench) -> None:
    """Case 14: it runs once, after its delay from the second `add`."""
    task = bench.add(5, "task")
    assert task.cancel()
    bench.timer.add(task)
    assert (bench.after(5), len(bench.timer)) == (["task"], 0)


def test_a_task_may_add_itself_again_while_it_runs(bench: Bench) -> None:
    """Case 14: a periodic task runs at every period, and once each."""
    task = bench.add(10, "tick")
    task.then = lambda: bench.timer.add(task)
    for _ in range(5):
        while not bench.step():
            pass
    assert bench.times() == [1_010, 1_020, 1_030, 1_040, 1_050]
    task.cancel()


def test_a_task_that_adds_itself_without_delay_runs_once_an_advance(bench: Bench) -> None:
    """It does not hold the timer in one advance for ever."""
    task = bench.add(0, "again")
    task.then = lambda: bench.timer.add(task)
    assert [bench.timer.advance_clock() for _ in range(3)] == [1, 1, 1]
    task.cancel()


def test_what_runs_out_during_an_advance_keeps_the_order_of_deadlines(bench: Bench) -> None:
    """A task added without delay, from a task, waits behind those that were due before it."""
    bench.add(2, "two", lambda: bench.add(0, "zero"))
    bench.add(3, "three")
    assert (bench.after(5), bench.after(0)) == (["two", "three"], ["zero"])


def test_a_limit_keeps_the_order_of_deadlines(make_bench: Callable[..., Bench]) -> None:
    """What a limit left over runs before what was added without delay meanwhile."""
    bench = make_bench(wheel_size=256)
    bench.add(2, "two", lambda: bench.add(0, "zero"))
    bench.add(3, "three")
    bench.add(4, "four")
    bench.clock.advance(5)
    assert [bench.timer.advance_clock(limit=1) for _ in range(4)] == [1, 1, 1, 1]
    assert bench.names() == ["two", "three", "four", "zero"]


def test_cancelling_twice_is_cancelling_once(bench: Bench) -> None:
    """Case 15: the second call says that there was nothing to cancel."""
    task = bench.add(5, "task")
    assert (task.cancel(), task.cancel(), len(bench.timer)) == (True, False, 0)
    assert bench.after(HOUR_MS) == []


def test_a_task_that_was_never_added_can_be_cancelled(bench: Bench) -> None:
    """Cancelling what is not pending does nothing, and says so."""
    assert not Note(bench, 5, "task").cancel()


def test_a_task_that_ran_is_not_pending_any_more(bench: Bench) -> None:
    """While and after it runs it is out of the timer, and cannot be cancelled."""
    seen: list[bool] = []
    task = bench.add(5)
    task.then = lambda: seen.extend((task.is_pending, task.cancel()))
    assert task.is_pending
    bench.after(5)
    assert (seen, task.is_pending) == ([False, False], False)


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


def test_what_moves_down_a_level_is_counted(bench: Bench) -> None:
    """Once for every level that it leaves: at 3 buckets, 20 ms are in the third."""
    bench.add(2)
    bench.run_out()
    assert bench.timer.cascaded == 0
    bench.add(20)
    bench.run_out()
    assert bench.timer.cascaded == 2


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


def test_a_task_that_is_cancelled_when_due_does_not_run(bench: Bench) -> None:
    """Case 18, where Kafka's runs: a task can be cancelled until the moment it runs."""
    victims: list[Note] = []
    bench.add(5, "killer", lambda: [victim.cancel() for victim in victims])
    victims += [bench.add(5, "same tick"), bench.add(6, "next tick"), bench.add(HOUR_MS, "far")]
    assert bench.after(10) == ["killer"]
    assert (len(bench.timer), bench.timer.next_expiration_ms()) == (0, None)


def test_a_due_task_that_is_added_again_runs_at_the_new_time(bench: Bench) -> None:
    """Rescheduling works until the moment it runs, from another task of the same tick too."""
    later: list[Note] = []
    bench.add(5, "first", lambda: bench.timer.add(later[0]))
    later.append(bench.add(5, "second"))
    assert (bench.after(5), bench.after(4), bench.after(1)) == (["first"], [], ["second"])


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


@pytest.mark.parametrize("delay_ms", [MAX_DELAY_MS + 1, 2**63 - 1, 2**100])
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


@pytest.mark.parametrize("delay_ms", [1.0, 2.5, float("nan"), float("inf"), True, "5", None])
def test_a_delay_is_a_whole_number(bench: Bench, delay_ms: int) -> None:
    """Anything else is a TypeError at once, when the task is made or the call is scheduled."""
    with pytest.raises(TypeError, match="not an int"):
        TimerTask(delay_ms)
    with pytest.raises(TypeError, match="not an int"):
        bench.timer.call_later(delay_ms, print)
    assert len(bench.timer) == 0


def test_a_task_has_to_define_run() -> None:
    """A subclass without `run` says so by name."""
    with pytest.raises(NotImplementedError, match=r"TimerTask does not define run\(\)"):
        TimerTask(0).run()


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
    assert bench.timer.advance_clock(limit=5) == 0
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
    bench.timer.close()


def test_the_lateness_is_that_of_the_run(bench: Bench) -> None:
    """How late the last task of a bucket ran is kept, at the worst."""
    bench.add(5)
    bench.step()
    assert bench.timer.longest_lateness_ms == 0
    bench.add(5)
    bench.clock.advance(12)
    bench.timer.advance_clock()
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


def test_close_returns_what_was_pending_in_order(bench: Bench) -> None:
    """Nothing of it runs, nothing is left, and nobody waits unknown to the caller."""
    for delay_ms in (40, 0, 7, 3, 500):
        bench.add(delay_ms, str(delay_ms))
    closed = bench.timer.close()
    assert [task.delay_ms for task in closed] == [0, 3, 7, 40, 500]
    assert not any(task.is_pending for task in closed)
    assert (len(bench.timer), bench.timer.next_expiration_ms(), bench.notes) == (0, None, [])
    assert bench.after(HOUR_MS) == []


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


def test_a_timer_that_was_closed_can_be_used_again(bench: Bench) -> None:
    """Nothing of what it was before is in the way of what is added now."""
    for delay_ms in (5, 1, 40):
        bench.add(delay_ms, "before")
    bench.timer.close()
    for delay_ms in (5, 1, 40):
        bench.add(delay_ms, str(delay_ms))
    bench.run_out()
    assert bench.notes == [("1", 1_001), ("5", 1_005), ("40", 1_040)]


def test_a_timer_without_tasks_is_still_true(bench: Bench) -> None:
    """Its length is its number of tasks, its truth is not."""
    assert len(bench.timer) == 0 and bench.timer


def test_a_task_can_move_to_another_timer(make_bench: Callable[..., Bench]) -> None:
    """It leaves the first: a task is in one bucket at the most."""
    first, second = make_bench(), make_bench()
    task = first.add(5, "task")
    second.timer.add(task)
    assert (len(first.timer), len(second.timer)) == (0, 1)
    first.clock.advance(5)
    assert (first.timer.advance_clock(), second.timer.advance_clock()) == (0, 1)


def test_a_call_is_made_with_its_arguments(bench: Bench) -> None:
    """`call_later` returns what can cancel it."""
    calls: list[object] = []
    bench.timer.call_later(5, calls.append, "kept")
    cancelled = bench.timer.call_later(5, calls.append, "cancelled")
    assert cancelled.cancel()
    bench.after(5)
    assert calls == ["kept"]


@pytest.mark.parametrize("tick_ms", [1, 7])
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


@pytest.mark.parametrize("options", [{"tick_ms": 0}, {"wheel_size": 1}, {"tick_ms": 1.5}])
def test_a_timer_refuses_a_geometry_that_makes_no_sense(
    clock: MockClock, options: dict[str, int]
) -> None:
    """As its wheel does."""
    with pytest.raises(ValueError, match="give a whole number"):
        SystemTimer(clock=clock, **options)
