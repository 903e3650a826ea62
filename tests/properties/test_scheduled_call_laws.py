"""The law of ScheduledCall.cancel, which in plain Python is a copy of TaskArray.remove."""

from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer


@given(
    count=st.integers(1, 200),
    data=st.data(),
)
def test_calls_that_are_cancelled_in_any_order(count: int, data: st.DataObject) -> None:
    """Of many calls in one bucket those that are left run, in order; the count is exact."""
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    ran: list[int] = []
    calls = [timer.call_later(5, ran.append, number) for number in range(count)]
    left = list(range(count))
    is_backward = data.draw(st.booleans())
    doomed = data.draw(st.sets(st.integers(0, count - 1)))
    for number in sorted(doomed, reverse=is_backward):
        assert calls[number].cancel() and not calls[number].cancel()
        left.remove(number)
        assert len(timer) == len(left)
    calls.append(timer.call_later(5, ran.append, count))
    left.append(count)
    clock.advance(6)
    assert timer.advance_clock() == len(left)
    assert ran == left and len(timer) == 0


@given(count=st.integers(2, 70))
def test_the_second_last_call_is_cancelled(count: int) -> None:
    """And then the last: both leave, and nothing else does."""
    clock = MockClock()
    timer = SystemTimer(clock=clock)
    ran: list[int] = []
    calls = [timer.call_later(5, ran.append, number) for number in range(count)]
    assert calls[-2].cancel() and calls[-1].cancel()
    clock.advance(6)
    timer.advance_clock()
    assert ran == list(range(count - 2))
