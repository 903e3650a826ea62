"""What the bucket of a timer takes and gives back: memory, and the work of closing up."""

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from purgatory.timer import PendingTasks, ScheduledCall, TimerTask, TimerTaskList, compiled
from purgatory.timer.task import ARRAY_SIZE
from tests.cases import cases


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


@pytest.mark.skipif(compiled, reason="attributes of the compiled form are not those of Python")
def test_a_list_of_arrays_closes_up_once_more_than_half_of_them_are_dropped() -> None:
    """No earlier: no more arrays move than are dropped, which is amortized O(1)."""
    bucket = TimerTaskList(PendingTasks())
    random = Random(1)
    groups: list[list[TimerTask]] = []
    moved = dropped = 0
    while dropped < 100:
        # Now more are added than dropped, now fewer.
        if len(groups) < 3 or random.random() < 0.3 + 0.4 * (dropped // 10 % 2):
            groups.append(tasks_of(ARRAY_SIZE))
            for task in groups[-1]:
                bucket.add(task)
            continue
        before = {id(array): array.position for array in bucket.arrays if array}
        for task in groups.pop(random.randrange(len(groups))):
            task.cancel()
        dropped += 1
        moved += sum(array.position != before[id(array)] for array in bucket.arrays if array)
        assert moved <= dropped
        assert 2 * bucket.arrays.count(None) <= len(bucket.arrays)


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
