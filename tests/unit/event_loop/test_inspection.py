"""What operators read of a purgatory."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.event_loop.inspection import Inspection, started_ms
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.unit.operations.noted_operation import Operation, watch


def test_times_and_buckets(clock: MockClock, make_timer: Callable[..., SystemTimer]) -> None:
    """Of waits since their first watch, by a wall clock that is read once; of levels with tasks."""
    clock.set_wall(5_000)
    timer = make_timer(wheel_size=4)
    core = DelayedOperationPurgatory("test", timer)
    inspection = Inspection(core, timer, clock)
    start_ms = timer.now_ms()
    assert started_ms(Operation(250)) == 0
    first = watch(core, "a", delay_ms=9)
    clock.set_wall(90_000)
    assert inspection.wall_ms(inspection.now_ms()) == 5_000
    assert started_ms(first) == first.expiration_ms - 9 == inspection.oldest_start_ms("a")
    assert inspection.oldest_start_ms("c") is None
    for delay_ms in (1, 2, 2):
        watch(core, "a", delay_ms=delay_ms)
    clock.advance(1)
    fine, coarse = inspection.levels()
    assert (fine.tick_ms, fine.size, fine.position, fine.tasks) == (1, 4, (start_ms + 1) % 4, 3)
    assert fine.buckets == sorted([((start_ms + 1) % 4, 1), ((start_ms + 2) % 4, 2)])
    assert (coarse.tick_ms, coarse.size, coarse.position) == (4, 4, start_ms // 4 % 4)
    assert coarse.buckets == [((start_ms + 9) // 4 % 4, 1)] and coarse.tasks == 1
    core.shutdown()
