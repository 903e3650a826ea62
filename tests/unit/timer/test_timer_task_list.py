"""Cases 11 and 12 of Kafka's TimerTaskList, and the order of a bucket."""

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.timer import PendingTasks, ScheduledCall, TimerTask, TimerTaskList, compiled
from purgatory.timer.task import ARRAY_SIZE
from tests.cases import cases


def tasks_of(count: int) -> list[TimerTask]:
    return [TimerTask(0) for _ in range(count)]


def test_lists_share_one_counter_while_tasks_move_between_them() -> None:
    """Case 11: a task counts once, whichever list it moved to, and not at all once cancelled."""
    counter = PendingTasks()
    first, second, third = (TimerTaskList(counter) for _ in range(3))
    tasks = tasks_of(10)
    for number, task in enumerate(tasks, start=1):
        first.add(task)
        assert counter.count == number
    for task in tasks[:4]:
        second.add(task)
        assert counter.count == 10
    assert [len(first), len(second), len(third)] == [6, 4, 0]
    for task in tasks[4:]:
        third.add(task)
        assert counter.count == 10
    assert [len(first), len(second), len(third)] == [0, 4, 6]
    for task in tasks[:4]:
        assert task.cancel()
    assert [len(first), len(second), len(third)] == [0, 0, 6]
    assert counter.count == 6


def test_setting_the_expiration_says_whether_it_changed() -> None:
    """Case 12: a bucket is queued once a round, when its start changes."""
    bucket = TimerTaskList(PendingTasks())
    changes = [bucket.set_expiration(start_ms) for start_ms in (10, 10, 20, 20, 10)]
    assert changes == [True, False, True, False, True]


def test_a_flushed_bucket_is_free_for_the_next_round() -> None:
    """Case 12: after a flush the same start counts as a change again."""
    bucket = TimerTaskList(PendingTasks())
    bucket.set_expiration(10)
    bucket.flush(lambda task: None)
    assert bucket.set_expiration(10)


def test_a_flush_hands_over_every_task_in_order_of_arrival() -> None:
    """Each task is out of the bucket by the time it is handed over, and no longer counts."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    tasks = tasks_of(3)
    for task in tasks:
        bucket.add(task)
    seen: list[tuple[TimerTask, bool, int]] = []
    bucket.flush(lambda task: seen.append((task, task.is_pending, counter.count)))
    assert seen == [(tasks[0], False, 2), (tasks[1], False, 1), (tasks[2], False, 0)]


def test_a_flush_passes_over_what_was_cancelled_meanwhile() -> None:
    """A task that an earlier one cancelled is not handed over."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    first, cancelled, last = tasks = tasks_of(3)
    for task in tasks:
        bucket.add(task)
    seen: list[TimerTask] = []

    def consume(task: TimerTask) -> None:
        seen.append(task)
        cancelled.cancel()

    bucket.flush(consume)
    assert (seen, counter.count) == ([first, last], 0)


def test_a_flush_keeps_what_is_added_meanwhile() -> None:
    """A task that comes back into the bucket while it is flushed waits for the next flush."""
    bucket = TimerTaskList(PendingTasks())
    task = TimerTask(0)
    bucket.add(task)
    bucket.flush(bucket.add)
    assert list(bucket) == [task]


def test_adding_a_task_again_moves_it_to_the_end() -> None:
    """A task is in a bucket once, in the place of its last arrival."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    a, b = tasks_of(2)
    for task in (a, b, a):
        bucket.add(task)
    assert (list(bucket), counter.count) == ([b, a], 2)


def test_removing_from_the_middle_keeps_the_order() -> None:
    """A removed task leaves its neighbours as they were, and what comes next comes last."""
    bucket = TimerTaskList(PendingTasks())
    a, b, c = tasks_of(3)
    for task in (a, b, c):
        bucket.add(task)
    b.cancel()
    assert (list(bucket), b.is_pending) == ([a, c], False)
    bucket.add(b)
    assert list(bucket) == [a, c, b]


@cases("count", [1, ARRAY_SIZE, ARRAY_SIZE + 1, 3 * ARRAY_SIZE])
def test_a_bucket_holds_any_number(count: int) -> None:
    """However many arrays it takes, the order is that of arrival."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    tasks = tasks_of(count)
    for task in tasks:
        bucket.add(task)
    assert (list(bucket), counter.count) == (tasks, count)
    seen: list[TimerTask] = []
    bucket.flush(seen.append)
    assert (seen, counter.count, bool(bucket)) == (tasks, 0, False)


@given(
    count=st.integers(1, 3 * ARRAY_SIZE),
    share=st.sampled_from([0.05, 0.5, 0.95, 1]),
    random=st.randoms(use_true_random=False),
)
def test_whatever_leaves_the_rest_stays_in_order(count: int, share: float, random: Random) -> None:
    """Holes are let go of, in any order in which they come about, and the rest can still leave."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    tasks = tasks_of(count)
    for task in tasks:
        bucket.add(task)
    gone = set(random.sample(tasks, int(count * share)))
    for task in gone:
        assert task.cancel()
    more = tasks_of(3)
    for task in more:
        bucket.add(task)
    kept = [task for task in tasks if task not in gone] + more
    assert (list(bucket), counter.count) == (kept, len(kept))
    random.shuffle(kept)
    for task in kept:
        assert bucket and task.cancel() and not task.cancel()
    assert (list(bucket), bool(bucket), counter.count) == ([], False, 0)


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


def test_a_bucket_is_true_while_it_holds_a_task() -> None:
    """Truth says whether there is a task, without counting them."""
    bucket = TimerTaskList(PendingTasks())
    assert not bucket
    task = TimerTask(0)
    bucket.add(task)
    assert bucket
    task.cancel()
    assert not bucket


def test_a_walk_may_remove_as_it_goes() -> None:
    """Iterating goes over the tasks that were there when it began."""
    bucket = TimerTaskList(PendingTasks())
    tasks = tasks_of(3)
    for task in tasks:
        bucket.add(task)
    assert [task.cancel() for task in bucket] == [True, True, True]
    assert not bucket


def test_a_task_moves_between_lists_of_two_counters() -> None:
    """A list of another timer takes the task off the first timer's counter."""
    mine, yours = PendingTasks(), PendingTasks()
    task = TimerTask(0)
    TimerTaskList(mine).add(task)
    TimerTaskList(yours).add(task)
    assert (mine.count, yours.count) == (0, 1)
