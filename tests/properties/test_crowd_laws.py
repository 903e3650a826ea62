"""The laws of the timer for crowds: more tasks of one deadline than an array of a bucket holds."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer, TimerTask
from purgatory.timer.task import ARRAY_SIZE


class Crowd:
    """Numbered tasks, or calls by the timer, which in plain Python leave by code of their own."""

    def __init__(self, timer: SystemTimer, *, is_call: bool) -> None:
        self.timer = timer
        self.is_call = is_call
        self.members: list[TimerTask] = []
        self.ran: list[int] = []
        self.victims: dict[int, list[int]] = {}

    def add(self, delay_ms: int) -> None:
        number = len(self.members)
        if self.is_call:
            self.members.append(self.timer.call_later(delay_ms, self.run, number))
        else:
            self.members.append(Member(self, delay_ms, number))
            self.timer.add(self.members[-1])

    def run(self, number: int) -> None:
        self.ran.append(number)
        for victim in self.victims.pop(number, ()):
            if self.members[victim].cancel():
                self.victims.pop(victim, None)


class Member(TimerTask):
    __slots__ = ("crowd", "number")

    def __init__(self, crowd: Crowd, delay_ms: int, number: int) -> None:
        TimerTask.__init__(self, delay_ms)
        self.crowd = crowd
        self.number = number

    def run(self) -> None:
        self.crowd.run(self.number)


@given(
    count=st.integers(1, 6 * ARRAY_SIZE),
    is_call=st.booleans(),
    deadlines_ms=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    wheel_size=st.sampled_from([2, 5, 16, 256]),
    limit=st.sampled_from([1, 7, ARRAY_SIZE, 1_000, None]),
    cancelled=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    is_row=st.booleans(),
    murderers=st.sampled_from([0.0, 0.2]),
    turns=st.integers(0, 30),
    random=st.randoms(use_true_random=False),
)
def test_a_crowd_runs_once_in_order_but_for_who_was_cancelled(
    count: int,
    is_call: bool,
    deadlines_ms: list[int],
    wheel_size: int,
    limit: int | None,
    cancelled: float,
    is_row: bool,
    murderers: float,
    turns: int,
    random: Random,
) -> None:
    """Here and there or in a row, before, between and while they run and move down."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock, wheel_size=wheel_size)
    crowd = Crowd(timer, is_call=is_call)
    for number in range(count):
        crowd.add(random.choice(deadlines_ms))
        if random.random() < murderers:
            crowd.victims[number] = random.sample(range(count), min(count, 5))
    size = int(count * cancelled)
    start = random.randrange(count - size + 1)
    gone = list(range(start, start + size)) if is_row else random.sample(range(count), size)
    early = [number for number in gone if is_row or random.random() < 0.5]
    for left, number in enumerate(early[:: random.choice([1, -1])], 1):
        assert crowd.members[number].cancel() and not crowd.members[number].cancel()
        assert len(timer) == count - left
    crowd.add(deadlines_ms[0])
    late = sorted(set(gone) - set(early))
    steps = 0
    while (next_ms := timer.next_expiration_ms()) is not None:
        clock.advance(max(0, next_ms - timer.now_ms()))
        timer.advance_clock(limit)
        steps += 1
        if late and steps % 2:
            crowd.members[late.pop(random.randrange(len(late)))].cancel()
        if steps == turns:
            pending = [task for task in crowd.members if task.is_pending]
            assert timer.close() == sorted(pending, key=lambda task: task.expiration_ms)
            assert not any(task.is_pending for task in crowd.members)
    assert len(timer) == 0
    # Of those that ran, none twice, and each where it belongs.
    assert len(crowd.ran) == len(set(crowd.ran))
    assert crowd.ran == sorted(crowd.ran, key=lambda n: (crowd.members[n].delay_ms, n))
    assert set(crowd.ran).isdisjoint(early)
    if not (murderers or set(gone) - set(early) or 0 < turns <= steps):
        assert len(crowd.ran) == count + 1 - len(early)
