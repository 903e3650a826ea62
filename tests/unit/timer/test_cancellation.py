"""Cancelling in any order: holes, arrays that close up, and the tasks that are left."""

from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer, TimerTask
from purgatory.timer.task import ARRAY_SIZE


class Call(TimerTask):
    """A task that calls a function, as a call by the timer does."""

    def __init__(self, delay_ms: int, callback: Callable[..., object], *args: object) -> None:
        super().__init__(delay_ms)
        self.callback = callback
        self.args = args

    def run(self) -> None:
        self.callback(*self.args)


class Crowd:
    """Numbered tasks of one deadline, and the numbers of those that ran."""

    def __init__(self, timer: SystemTimer, clock: MockClock, *, is_call_later: bool) -> None:
        self.timer = timer
        self.clock = clock
        self.is_call_later = is_call_later
        self.then: dict[int, Callable[[], object]] = {}
        self.tasks: list[TimerTask] = []
        self.ran: list[int] = []

    def add(self, count: int) -> None:
        for number in range(len(self.tasks), len(self.tasks) + count):
            if self.is_call_later:
                self.tasks.append(self.timer.call_later(10, self.run, number))
            else:
                task = Call(10, self.run, number)
                self.timer.add(task)
                self.tasks.append(task)

    def run(self, number: int) -> None:
        self.ran.append(number)
        self.then.get(number, lambda: None)()

    def cancel(self, numbers: range | tuple[int, ...]) -> None:
        before = len(self.timer)
        for number in numbers:
            assert self.tasks[number].cancel()
            assert not self.tasks[number].cancel()
        left = before - len(numbers)
        assert len(self.timer) == left
        assert (self.timer.next_expiration_ms() is None) == (left == 0)

    def run_out(self) -> None:
        self.clock.advance(10)
        for _ in range(len(self.timer)):
            self.timer.advance_clock(limit=100)
        assert (len(self.timer), self.timer.next_expiration_ms()) == (0, None)


@pytest.fixture(params=["task", "call_later"])
def crowd(
    request: pytest.FixtureRequest, make_timer: Callable[..., SystemTimer], clock: MockClock
) -> Crowd:
    """Nobody yet, on a timer that has to be empty in the end."""
    return Crowd(make_timer(), clock, is_call_later=request.param == "call_later")


COUNT = 400


@pytest.mark.parametrize(
    "gone",
    [
        range(1, 291),
        range(100, 390),
        range(ARRAY_SIZE, COUNT - ARRAY_SIZE),
        range(1, COUNT - 1),
        range(1, COUNT, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_running", [False, True], ids=["before", "by the first"])
def test_most_of_a_bucket_is_cancelled(crowd: Crowd, gone: range, *, is_running: bool) -> None:
    """Arrays close up around those that are left, which can be cancelled and added to as before."""
    crowd.add(COUNT)
    left = [number for number in range(1, COUNT) if number not in gone]
    # Of what is left after that: from every array some, and from one array all.
    others = tuple(left[: ARRAY_SIZE + 5] + left[-1:]) if len(left) > 2 * ARRAY_SIZE else ()

    def cancel() -> None:
        crowd.cancel(gone)
        crowd.cancel(others)

    if is_running:
        crowd.then[0] = cancel
    else:
        cancel()
        crowd.add(5)
        left += range(COUNT, COUNT + 5)
    crowd.run_out()
    assert crowd.ran == [0] + [number for number in left if number not in others]


def test_arrays_close_up_again_and_again(crowd: Crowd) -> None:
    """From the front and from the back, array by array, with others added in between."""
    crowd.add(10 * ARRAY_SIZE)
    left = list(range(10 * ARRAY_SIZE))
    for is_front in (True, False) * 4:
        gone = tuple(left[:ARRAY_SIZE] if is_front else left[-ARRAY_SIZE:])
        crowd.cancel(gone)
        del left[slice(0, ARRAY_SIZE) if is_front else slice(-ARRAY_SIZE, None)]
        left.append(len(crowd.tasks))
        crowd.add(1)
    crowd.run_out()
    assert crowd.ran == left
