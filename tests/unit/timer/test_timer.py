"""Tasks and calls that fail, move, or wait for long, and their memory; laws have the rest."""

import gc
import logging
import time
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from random import Random

import pytest

from purgatory.testing import MockClock
from purgatory.timer import (
    MAX_DELAY_MS,
    PendingTasks,
    ScheduledCall,
    SystemClock,
    SystemTimer,
    TimerTask,
    TimerTaskList,
    compiled,
)
from purgatory.timer.task import ARRAY_SIZE
from tests.cases import cases

HOUR_MS = 3_600_000


class Note(TimerTask):
    """Notes its name when it runs, then does what it was told to do."""

    def __init__(self, bench: "Bench", delay_ms: int, name: str) -> None:
        super().__init__(delay_ms)
        self.bench = bench
        self.name = name
        self.then: Callable[[], object] = lambda: None

    def run(self) -> None:
        self.bench.notes.append(self.name)
        self.then()


@dataclass
class Bench:
    """A timer, its clock, and the tasks that ran."""

    timer: SystemTimer
    clock: MockClock
    notes: list[str]

    def add(self, delay_ms: int, name: str = "", then: Callable[[], object] | None = None) -> Note:
        task = Note(self, delay_ms, name)
        if then is not None:
            task.then = then
        self.timer.add(task)
        return task

    def after(self, ms: int) -> list[str]:
        """Let time pass in one leap; return the names of what ran."""
        self.clock.advance(ms)
        before = len(self.notes)
        self.timer.advance_clock()
        return self.notes[before:]


@pytest.fixture
def make_bench(make_timer: Callable[..., SystemTimer], clock: MockClock) -> Callable[..., Bench]:
    def make(tick_ms: int = 1, wheel_size: int = 3) -> Bench:
        return Bench(make_timer(tick_ms=tick_ms, wheel_size=wheel_size), clock, [])

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


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


def test_what_is_due_at_once_waits_for_its_bucket_that_a_limit_cut(
    make_bench: Callable[..., Bench],
) -> None:
    """The bucket of this tick comes down from an upper level in parts: the new one is behind."""
    bench = make_bench(wheel_size=8)
    for name in "abcde":
        bench.add(8, name)
    bench.clock.advance(8)
    assert bench.timer.advance_clock(2) == 0 and bench.timer.cascaded == 2
    bench.add(0, "at once")
    assert bench.after(0) == [*"abcde", "at once"]


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
    assert bench.notes == ["before", "failing", "after", "later"]
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
    assert bench.notes == ["interrupted", "after", "later", "zero"]


def test_a_task_has_to_define_run() -> None:
    """A subclass without `run` says so by name."""
    with pytest.raises(NotImplementedError, match=r"TimerTask does not define run\(\)"):
        TimerTask(0).run()


def test_a_timer_without_tasks_is_still_true(bench: Bench) -> None:
    """Its length is its number of tasks, its truth is not."""
    assert len(bench.timer) == 0 and bench.timer


@cases("name, least", [("tick_ms", 1), ("wheel_size", 2)])
def test_a_timer_refuses_a_geometry_that_makes_no_sense(
    clock: MockClock, name: str, least: int
) -> None:
    """A tick is at least a millisecond, and one bucket has no span to overflow from."""
    for value in (least - 1, -1, 2.0, True, "2", None):
        with pytest.raises(ValueError, match=f"{name}.*give a whole number"):
            SystemTimer(clock=clock, **{name: value})  # type: ignore[arg-type] # on purpose
    SystemTimer(clock=clock, **{name: least})


def test_a_short_delay_after_an_idle_hour_takes_no_detour(
    make_bench: Callable[..., Bench],
) -> None:
    """It lies in the lowest wheel, so that one step is enough."""
    bench = make_bench(wheel_size=256)
    bench.clock.advance(HOUR_MS)
    bench.add(7, "task")
    assert (bench.after(7), bench.timer.cascaded) == (["task"], 0)
    assert bench.timer.wheel.overflow is None


def test_the_system_clock_has_the_time_of_day_in_milliseconds() -> None:
    """As `time.time` has it in seconds, give or take a minute by which it may be corrected."""
    assert abs(SystemClock().wall_ms() / 1_000 - time.time()) < 60


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


class Session:
    """Something that holds its own timeout, which calls it back: a cycle."""

    def __init__(self, timer: SystemTimer, delay_ms: int) -> None:
        self.timeouts = 0
        self.timeout = timer.call_later(delay_ms, self.on_timeout)

    def on_timeout(self) -> None:
        self.timeouts += 1


def test_a_compiled_timer_is_not_the_collectors_business() -> None:
    """Millions of pending timers would be visited again and again."""
    assert gc.is_tracked(TimerTask(5)) is not compiled
    assert gc.is_tracked(ScheduledCall(5, print)) is not compiled


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda session, clock, timer: session.timeout.cancel(), id="cancelled"),
        pytest.param(lambda session, clock, timer: _pass(clock, timer), id="called"),
        pytest.param(lambda session, clock, timer: timer.__del__(), id="dropped"),
    ],
)
def test_whoever_holds_its_own_timeout_is_freed(
    end: Callable[[Session, MockClock, SystemTimer], object],
) -> None:
    """A call lets go of its callback once it is done, which ends the cycle."""
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    session = Session(timer, 10)
    seen = weakref.ref(session)
    end(session, clock, timer)
    del session
    gc.collect()
    assert seen() is None


def test_a_timer_that_is_dropped_frees_whoever_waits_in_it() -> None:
    """Nobody closed it: the links between its tasks are undone all the same."""
    timer = SystemTimer(clock=MockClock())
    sessions = [Session(timer, 10 + delay) for delay in range(1_000)]
    seen = [weakref.ref(session) for session in sessions]
    del timer, sessions
    gc.collect()
    assert not [session for session in (ref() for ref in seen) if session]


def test_what_is_compiled_says_what_it_takes() -> None:
    """As `help` shows it."""
    assert list(signature(SystemTimer.call_later).parameters) == [
        "self",
        "delay_ms",
        "callback",
        "args",
    ]
    assert signature(SystemTimer.advance_clock).parameters["limit"].default is None


def _pass(clock: MockClock, timer: SystemTimer) -> None:
    clock.advance(10)
    timer.advance_clock()


@pytest.mark.skipif(compiled, reason="attributes of the compiled form are not those of Python")
@cases("is_added", [True, False])
@cases("delay_ms", [10, 1_000])
def test_no_array_is_longer_than_the_allocator_of_small_objects_serves(
    *, is_added: bool, delay_ms: int
) -> None:
    """On whatever level its bucket is, and whether calls are added or made by the timer."""
    timer = SystemTimer(clock=MockClock())
    calls = [ScheduledCall(delay_ms, print) for _ in range(3 * ARRAY_SIZE)]
    for number, call in enumerate(calls):
        if is_added:
            timer.add(call)
        else:
            calls[number] = timer.call_later(delay_ms, print)
    arrays = {id(call._array): call._array for call in calls}
    assert [len(array.items) for array in arrays.values() if array] == [ARRAY_SIZE] * 3
    timer.close()


def test_a_call_is_made_once(caplog: pytest.LogCaptureFixture) -> None:
    """It has released what it held before the callback runs; again, by hand or not, is an error."""
    seen: list[tuple[object, ...]] = []
    call = ScheduledCall(5, lambda *args: seen.append((args, call.callback, call.args)), 1, 2)
    call.run()
    assert seen == [((1, 2), None, ())] and (call.callback, call.args) == (None, ())
    with pytest.raises(RuntimeError, match="a call is made once, so make a new one"):
        call.run()
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    timer.add(call)
    _pass(clock, timer)
    assert len(seen) == 1 and "a call is made once" in caplog.text


def test_a_call_that_was_cancelled_is_as_a_new_one_in_no_timer() -> None:
    """Without a deadline, and without what it held; a second time it was not pending."""
    timer = SystemTimer(clock=MockClock())
    new = ScheduledCall(10, print)
    calls = [timer.call_later(10, print, number) for number in range(3)]
    for call in calls:
        assert call.expiration_ms != new.expiration_ms
        assert call.cancel() and not call.cancel()
        assert call.expiration_ms == new.expiration_ms
        assert (call.callback, call.args) == (None, ())
    assert not new.cancel() and len(timer) == 0


def tasks_of(count: int) -> list[TimerTask]:
    return [TimerTask(0) for _ in range(count)]


def test_many_that_come_and_go_leave_nothing_behind() -> None:
    """A bucket far away, in which nothing stays long, does not grow."""
    bucket = TimerTaskList(PendingTasks())
    (first,) = tasks_of(1)
    bucket.add(first)
    rounds = 2_000
    tracemalloc.start()
    try:
        for _ in range(rounds):
            tasks = tasks_of(ARRAY_SIZE)
            for task in tasks:
                bucket.add(task)
            for task in tasks:
                task.cancel()
        del tasks, task
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < rounds * 20
    assert list(bucket) == [first]


@pytest.mark.skipif(compiled, reason="attributes of the compiled form are not those of Python")
@cases("make", [TimerTask, lambda delay_ms: ScheduledCall(delay_ms, print)])
@cases("seed", range(5))
def test_an_array_closes_up_once_three_of_four_places_are_holes(
    make: Callable[[int], TimerTask], seed: int
) -> None:
    """No earlier: no more tasks move than are cancelled, which is amortized O(1)."""
    bucket = TimerTaskList(PendingTasks())
    tasks = [make(0) for _ in range(ARRAY_SIZE)]
    for task in tasks:
        bucket.add(task)
    (array,) = bucket.arrays
    assert array is not None
    Random(seed).shuffle(tasks)
    moved = 0
    for cancelled in range(1, ARRAY_SIZE):
        before = {task: task._index for task in tasks}
        assert tasks.pop().cancel()
        moved += sum(task._index != before[task] for task in tasks)
        assert moved <= cancelled
        # One more: a task at the end leaves no hole, but one place less.
        assert 4 * array.items.count(None) <= 3 * (len(array.items) + 1)


def test_a_bucket_takes_little_more_than_a_pointer_for_each_task() -> None:
    """And gives about half of that back when seven of eight leave, evenly."""
    bucket = TimerTaskList(PendingTasks())
    # So many that what else allocates meanwhile, such as another thread, is little beside them.
    tasks = tasks_of(400 * ARRAY_SIZE)
    tracemalloc.start()
    try:
        for task in tasks:
            bucket.add(task)
        full, _ = tracemalloc.get_traced_memory()
        for number, task in enumerate(tasks):
            if number % 8:
                task.cancel()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(bucket) == tasks[::8]
    assert full < 16 * len(tasks)
    # 0.51 to 0.53, which depends on how much room the list of arrays has left.
    assert kept < 0.6 * full
