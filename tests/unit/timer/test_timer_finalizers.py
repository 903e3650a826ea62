"""What objects do to the timer when they go, in the midst of its work."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import ScheduledCall, SystemTimer, TimerTask, compiled
from purgatory.timer.task import ARRAY_SIZE
from tests.cases import cases


class Session:
    """Cancels what it has scheduled when it goes, and notes what came of it."""

    def __init__(self, outcomes: list[bool]) -> None:
        self.outcomes = outcomes
        self.calls: list[ScheduledCall | TimerTask] = []

    def __del__(self) -> None:
        self.outcomes.extend(call.cancel() for call in self.calls)

    def expire(self) -> None:
        """Be a callback."""


class OwningTask(TimerTask):
    """Owns a session, which goes with it."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        TimerTask.__init__(self, 100)
        self.session = session

    def run(self) -> None:
        """Leave the session to go with the task."""


class FailingTask(OwningTask):
    """Fails."""

    __slots__ = ()

    def run(self) -> None:
        raise ValueError


@cases("before", [0, 1, ARRAY_SIZE - 1])
def test_a_call_may_be_cancelled_by_what_goes_with_its_callback(before: int) -> None:
    """The inner cancel finds that the outer one was first; nothing else leaves."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock)
    ran: list[int] = []
    for number in range(before):
        timer.call_later(100, ran.append, number)
    outcomes: list[bool] = []
    session = Session(outcomes)
    call = timer.call_later(100, session.expire)
    session.calls.append(call)
    for number in range(before, 2 * ARRAY_SIZE):
        timer.call_later(100, ran.append, number)
    del session
    assert call.cancel()
    assert (outcomes, len(timer)) == ([False], 2 * ARRAY_SIZE)
    clock.advance(100)
    timer.advance_clock()
    assert (ran, len(timer)) == (list(range(2 * ARRAY_SIZE)), 0)


def test_what_goes_with_a_callback_may_cancel_the_next_call() -> None:
    """A callback is let go of before the call after it is taken out of the bucket."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock)
    ran: list[str] = []
    outcomes: list[bool] = []
    session = Session(outcomes)
    timer.call_later(100, session.expire)
    session.calls.append(timer.call_later(100, ran.append, "cancelled"))
    timer.call_later(100, ran.append, "last")
    del session
    clock.advance(100)
    assert timer.advance_clock() == 2
    assert (outcomes, ran, len(timer)) == ([True], ["last"], 0)


@pytest.mark.parametrize("first", [OwningTask, FailingTask])
def test_what_goes_with_a_task_may_cancel_the_next_task(
    first: Callable[[Session], TimerTask], caplog: pytest.LogCaptureFixture
) -> None:
    """A task is let go of, even one that failed, before the one after it is looked for."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock)
    outcomes: list[bool] = []
    session = Session(outcomes)
    timer.add(first(session))
    victim = OwningTask(Session([]))
    timer.add(victim)
    session.calls.append(victim)
    del session
    clock.advance(100)
    # A record of the failure would keep the task.
    caplog.set_level(logging.CRITICAL, logger="purgatory.timer")
    ran = timer.advance_clock()
    assert (ran, outcomes, victim.is_pending, len(timer)) == (1, [True], False, 0)


class Garbage:
    """A cycle, so that only the collector finds it; `then` is called when it does."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.cycle = self
        self.then = then

    def __del__(self) -> None:
        self.then()


def collect_garbage(nth: int, then: Callable[[], object], during: Callable[[], object]) -> None:
    """Call `then` from the collector, when `during` makes its nth object, or else after it."""
    # The youngest generation is enough, and others are large.
    gc.collect(0)
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        Garbage(then)
        gc.set_threshold(gc.get_count()[0] + nth, 1_000, 1_000)
        gc.enable()
        during()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    gc.collect(0)


@cases("nth", range(1, 12))
def test_a_task_added_by_the_collector_while_a_bucket_is_made_is_not_lost(nth: int) -> None:
    """Whichever of the objects that the timer makes it is that sets the collector off."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock, wheel_size=4)
    ran: list[str] = []
    call = ScheduledCall(30, ran.append, "asked for")
    collect_garbage(
        nth, lambda: timer.call_later(30, ran.append, "from garbage"), lambda: timer.add(call)
    )
    assert len(timer) == 2
    while (next_ms := timer.next_expiration_ms()) is not None:
        clock.advance(next_ms - timer.now_ms())
        timer.advance_clock()
    assert (sorted(ran), len(timer)) == (["asked for", "from garbage"], 0)


@cases("nth", range(1, 20))
def test_a_task_cancelled_by_the_collector_while_it_moves_down_stays_cancelled(nth: int) -> None:
    """Whichever object sets the collector off; the array that was made for the task is dropped."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock, wheel_size=4)
    ran: list[int] = []
    # The last one needs another array, for which more objects are made than have been at once.
    delays_ms = [6] * ARRAY_SIZE + [7, 6]
    calls = [timer.call_later(delay_ms, ran.append, n) for n, delay_ms in enumerate(delays_ms)]
    left = len(calls) - 1
    was_moved = False
    above = None if compiled else calls[-1]._array

    def cancel() -> None:
        nonlocal was_moved
        was_moved = not compiled and calls[-1]._array is not above
        calls[-1].cancel()

    clock.advance(4)
    collect_garbage(nth, cancel, timer.advance_clock)
    assert len(timer) == left
    if not compiled:
        assert timer.cascaded == left + was_moved
        lists = [bucket._descended for bucket in timer.wheel.buckets()]
        assert len(lists) == 2
        assert all(array.items for each in lists if each for array in each.arrays if array)
    clock.advance(3)
    assert (timer.advance_clock(), ran, len(timer)) == (left, list(range(left)), 0)


@cases(
    "code",
    [
        "sys.timer = SystemTimer()",
        "sys.timer = SystemTimer(); sys.timer.call_later(5_000, print)",
        "timer = SystemTimer(); timer.call_later(5_000, timer.call_later)",
        "sys.purgatory = Purgatory()",
    ],
)
def test_a_timer_that_outlives_the_interpreter_says_nothing(code: str) -> None:
    """As that of an application which is a name of its module: there is nobody to tell."""
    imports = (
        "import sys; from purgatory import Purgatory; from purgatory.timer import SystemTimer; "
    )
    # The form that is tested: where its modules are found goes along.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", imports + code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
