"""The laws of the timer for crowds: more tasks of one deadline than an array of a bucket holds."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer, TimerTask
from purgatory.timer.task import ARRAY_SIZE


class CrowdTask(TimerTask):
    """Notes that it ran, and may take others with it."""

    __slots__ = ("ran", "victims")

    def __init__(self, delay_ms: int, ran: list[CrowdTask]) -> None:
        TimerTask.__init__(self, delay_ms)
        self.ran = ran
        self.victims: list[CrowdTask] = []

    def run(self) -> None:
        self.ran.append(self)
        for victim in self.victims:
            if victim.cancel():
                victim.victims.clear()
        self.victims.clear()


@given(
    count=st.integers(1, 6 * ARRAY_SIZE),
    deadlines_ms=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    wheel_size=st.sampled_from([2, 5, 16, 256]),
    limit=st.sampled_from([1, 7, ARRAY_SIZE, 1_000, None]),
    cancelled=st.sampled_from([0.0, 0.3, 0.9]),
    murderers=st.sampled_from([0.0, 0.2]),
    turns=st.integers(0, 30),
    random=st.randoms(use_true_random=False),
)
def test_a_crowd_runs_once_in_order_but_for_who_was_cancelled(
    count: int,
    deadlines_ms: list[int],
    wheel_size: int,
    limit: int | None,
    cancelled: float,
    murderers: float,
    turns: int,
    random: Random,
) -> None:
    """Before, between and while they run and move down, whoever cancels whom."""
    clock = MockClock(1_000)
    timer = SystemTimer(clock=clock, wheel_size=wheel_size)
    ran: list[CrowdTask] = []
    tasks = [CrowdTask(random.choice(deadlines_ms), ran) for _ in range(count)]
    for task in tasks:
        timer.add(task)
        if random.random() < murderers:
            task.victims = random.sample(tasks, min(count, 5))
    gone = set(random.sample(tasks, int(count * cancelled)))
    early = {task for task in gone if random.random() < 0.5}
    for task in early:
        assert task.cancel()
    late = sorted(gone - early, key=tasks.index)
    steps = 0
    while timer:
        next_ms = timer.next_expiration_ms()
        if next_ms is None:
            break
        clock.advance(max(0, next_ms - timer.now_ms()))
        timer.advance_clock(limit)
        steps += 1
        if late and steps % 2:
            late.pop(random.randrange(len(late))).cancel()
        if steps == turns:
            left = [task for task in tasks if task.is_pending]
            assert timer.close() == sorted(left, key=lambda task: task.expiration_ms)
            assert not any(task.is_pending for task in tasks)
    assert len(timer) == 0
    # Of those that ran, none twice, and each where it belongs.
    assert len(ran) == len(set(ran))
    assert ran == sorted(ran, key=lambda task: (task.delay_ms, tasks.index(task)))
    assert early.isdisjoint(ran)
    if not (gone or murderers or steps >= turns):
        assert len(ran) == count
