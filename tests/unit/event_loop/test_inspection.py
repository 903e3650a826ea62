"""What operators read of a purgatory."""

from __future__ import annotations

import pytest

from purgatory import DelayedOperation, Status
from purgatory.event_loop.inspection import Inspection, started_ms
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.unit.operations.noted_operation import Operation


@pytest.fixture
def clock() -> MockClock:
    return MockClock(start_ms=1_000)


@pytest.fixture
def timer(clock: MockClock) -> SystemTimer:
    return SystemTimer(tick_ms=1, wheel_size=4, clock=clock)


@pytest.fixture
def core(timer: SystemTimer) -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory("test", timer)


def test_times_and_keys(
    clock: MockClock, timer: SystemTimer, core: DelayedOperationPurgatory
) -> None:
    """Keys are in the order of their first watch, operations in that of their arrival."""
    clock.set_wall(5_000)
    inspection = Inspection(core, timer, clock)
    first, second = Operation(100), Operation(50)
    core.try_complete_else_watch(first, ["b", "a"])
    clock.advance(9)
    core.try_complete_else_watch(second, ["a"])
    assert inspection.watched() == ["b", "a"]
    assert [inspection.count(key) for key in "abc"] == [2, 1, 0]
    assert inspection.watching("a") == [first, second] and inspection.watching("c") == []
    assert inspection.oldest_start_ms("a") == started_ms(first) < started_ms(second)
    assert inspection.oldest_start_ms("c") is None
    assert inspection.wall_ms(inspection.now_ms()) == 5_009 == clock.wall_ms()
    clock.set_wall(90_000)
    assert inspection.wall_ms(inspection.now_ms()) == 5_009, "read once"


def test_levels_of_the_wheel(
    clock: MockClock, timer: SystemTimer, core: DelayedOperationPurgatory
) -> None:
    """Buckets are named by their place in their level, and only those with tasks."""
    inspection = Inspection(core, timer, clock)
    start_ms = timer.now_ms()
    for delay_ms in (1, 2, 2, 9):
        core.try_complete_else_watch(Operation(delay_ms), ["a"])
    fine, coarse = inspection.levels()
    assert (fine.tick_ms, fine.size, fine.tasks) == (1, 4, 3)
    assert fine.position == start_ms % 4
    assert sum(count for _, count in fine.buckets) == 3 and fine.buckets == sorted(fine.buckets)
    assert (coarse.tick_ms, coarse.size, coarse.tasks) == (4, 4, 1)
    assert coarse.position == start_ms // 4 % 4
    [(bucket, count)] = coarse.buckets
    deadline_ms = start_ms + 9
    assert count == 1 and bucket in {deadline_ms // 4 % 4, (deadline_ms + 1) // 4 % 4}
    clock.advance(1)
    assert inspection.levels()[0].position == (start_ms + 1) % 4


def test_a_recorder_is_called_until_it_is_detached(
    clock: MockClock, timer: SystemTimer, core: DelayedOperationPurgatory
) -> None:
    """Of what is watched and what ends; another one goes on."""

    class Recorded:
        def __init__(self) -> None:
            self.statuses: list[Status] = []

        def record(self, operation: DelayedOperation, status: Status, *_: object) -> None:
            self.statuses.append(status)

    inspection = Inspection(core, timer, clock)
    first, second = Recorded(), Recorded()
    inspection.attach(first)
    inspection.attach(second)
    operation = Operation(10)
    core.try_complete_else_watch(operation, ["a"])
    inspection.detach(first)
    operation.cancel()
    assert first.statuses == [Status.PENDING]
    assert second.statuses == [Status.PENDING, Status.CANCELLED]
