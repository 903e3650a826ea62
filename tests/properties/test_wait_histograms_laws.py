"""Histograms of waits, by kind and outcome."""

from bisect import bisect_left
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.wait_histograms import (
    LATENESS_BOUNDS_MS,
    MAX_KINDS,
    OTHER,
    WAIT_BOUNDS_MS,
    WaitTimes,
)
from purgatory.testing import MockClock
from purgatory.timer import SystemClock, SystemTimer
from tests.unit.operations.noted_operation import Operation, pass_time, watch

WAITS = st.lists(st.tuples(st.integers(1, 90_000), st.integers(0, 90_000)), max_size=20)


@given(waits=WAITS, other_end=st.sampled_from(["fired", "cancelled", "drained"]))
def test_each_wait_is_counted_once_in_its_bucket(
    waits: list[tuple[int, int]], other_end: str
) -> None:
    """By the model: it waits until its deadline or its end, whichever is first."""
    clock = MockClock(1_000)
    times = WaitTimes(clock)
    core = DelayedOperationPurgatory("test", SystemTimer(clock=clock), listeners=[times])
    expected: dict[str, list[int]] = defaultdict(list)
    for delay_ms, end_ms in waits:
        operation = watch(core, "a", delay_ms=delay_ms)
        pass_time(core, clock, min(delay_ms, end_ms))
        if end_ms < delay_ms:
            operation.completable = True
            {
                "fired": lambda: core.check_and_complete("a"),
                "cancelled": lambda: core.cancel_for_key("a"),
                "drained": core.shutdown,
            }[other_end]()
            core.is_closed = False
        is_expired = end_ms >= delay_ms
        expected["expired" if is_expired else other_end].append(min(delay_ms, end_ms))
    for kind in times.kinds.values():
        for status, histogram in kind.by_outcome().items():
            counts = [0] * (len(WAIT_BOUNDS_MS) + 1)
            for waited_ms in expected[status.value]:
                counts[bisect_left(WAIT_BOUNDS_MS, waited_ms)] += 1
            assert list(histogram.counts) == counts
            assert histogram.total == sum(expected[status.value])
    assert sum(times.lateness.counts) == len(expected["expired"])
    assert times.lateness.total == 0


def test_lateness_is_that_of_a_stalled_loop() -> None:
    """A deadline that is noticed 30 ms late counts as 30 ms late."""
    clock = MockClock(1_000)
    times = WaitTimes(clock)
    core = DelayedOperationPurgatory("test", SystemTimer(clock=clock), listeners=[times])
    watch(core, "a", delay_ms=20)
    clock.advance(50)
    core.timer.advance_clock()
    assert times.lateness.counts[LATENESS_BOUNDS_MS.index(50)] == 1
    [kind] = times.kinds.values()
    assert kind.by_outcome()[Status.EXPIRED].total == 50


def test_kinds_are_bounded() -> None:
    """Classes that an application makes as it goes share a kind at last."""
    clock = SystemClock()
    times = WaitTimes(clock)
    core = DelayedOperationPurgatory("test", SystemTimer(clock=clock), listeners=[times])
    for number in range(2 * MAX_KINDS):
        made = type(f"Operation{number}", (Operation,), {"__slots__": ()})
        operation = made(50)
        core.try_complete_else_watch(operation, ("a",))
        operation.force_complete()
    assert len(times.kinds) == MAX_KINDS + 1
    assert sum(times.kinds[OTHER].fired.counts) == MAX_KINDS
