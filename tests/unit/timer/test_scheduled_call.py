"""Calls by the timer, and that nothing leaks though the collector does not see compiled timers."""

import gc
import logging
import weakref
from collections.abc import Callable
from inspect import signature

import pytest

from purgatory.testing import MockClock
from purgatory.timer import ScheduledCall, SystemTimer, TimerTask, compiled
from purgatory.timer.task import ARRAY_SIZE
from tests.cases import cases


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


def test_a_call_is_made_once(caplog: pytest.LogCaptureFixture) -> None:
    """Adding it again is an error that says what to do, in the log as every task's failure."""
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    called: list[int] = []
    call = timer.call_later(1, called.append, 1)
    _pass(clock, timer)
    assert (called, call.callback, call.args) == ([1], None, ())
    with pytest.raises(RuntimeError, match="a call is made once, so make a new one"):
        call.run()
    timer.add(call)
    with caplog.at_level(logging.ERROR):
        _pass(clock, timer)
    assert called == [1]
    assert "a call is made once" in caplog.text


@pytest.mark.skipif(compiled, reason="attributes of the compiled form are not those of Python")
def test_the_last_call_that_is_cancelled_takes_the_places_of_others_with_it() -> None:
    """What is left of a bucket takes no memory."""
    timer = SystemTimer(clock=MockClock())
    first, last = timer.call_later(10, print), timer.call_later(10, print)
    array = first._array
    assert array is not None and array is last._array
    first.cancel()
    last.cancel()
    assert (array.items, array.holes) == ([], 0)


def test_a_failing_call_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Of one bucket, too, where the timer calls without a frame in between."""
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    called: list[str] = []
    timer.call_later(5, called.append, "before")
    timer.call_later(5, int, "no number")
    timer.call_later(5, called.append, "after")
    _pass(clock, timer)
    assert called == ["before", "after"]
    assert "no number" in caplog.text


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


@pytest.mark.skipif(compiled, reason="attributes of the compiled form are not those of Python")
def test_an_array_whose_calls_are_all_cancelled_is_dropped_at_once() -> None:
    """Also the first one, as soon as there is another."""
    timer = SystemTimer(clock=MockClock())
    calls = [timer.call_later(10, print) for _ in range(ARRAY_SIZE + 1)]
    first, second = calls[0]._array, calls[-1]._array
    assert first is not None and second is not None
    arrays = second.owner.arrays
    assert arrays == [first, second]
    for call in calls[:ARRAY_SIZE]:
        call.cancel()
    assert arrays == [None, second]
    timer.close()


def test_a_call_that_is_made_by_hand() -> None:
    """It has released what it held before the callback runs, and is made once."""
    seen: list[tuple[object, ...]] = []
    call = ScheduledCall(5, lambda *args: seen.append((args, call.callback, call.args)), 1, 2)
    call.run()
    assert seen == [((1, 2), None, ())] and (call.callback, call.args) == (None, ())
    with pytest.raises(RuntimeError, match="was called or cancelled before"):
        call.run()
    assert len(seen) == 1


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
