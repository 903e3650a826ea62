"""Cases 11 and 12 of Kafka's TimerTaskList, and the order of a bucket."""

from purgatory import TimerTask, TimerTaskList
from purgatory.timer import PendingTasks


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


def test_first_and_last() -> None:
    """A task goes to either end, and comes out of either end."""
    bucket = TimerTaskList(PendingTasks())
    a, b, c, d = tasks_of(4)
    for task in (b, c):
        bucket.add(task)
    bucket.add_first(a)
    bucket.add(d)
    assert list(bucket) == [a, b, c, d]
    assert (bucket.pop_first(), bucket.pop_last(), bucket.pop_first()) == (a, d, b)
    assert (bucket.pop_last(), bucket.pop_last(), bucket.pop_first()) == (c, None, None)


def test_adding_a_task_again_moves_it_to_the_end() -> None:
    """A task is in a bucket once, in the place of its last arrival."""
    counter = PendingTasks()
    bucket = TimerTaskList(counter)
    a, b = tasks_of(2)
    for task in (a, b, a):
        bucket.add(task)
    assert (list(bucket), counter.count) == ([b, a], 2)
    bucket.add_first(a)
    assert (list(bucket), counter.count) == ([a, b], 2)


def test_removing_from_the_middle_keeps_the_order() -> None:
    """A removed task leaves its neighbours linked, in both directions, and itself unlinked."""
    bucket = TimerTaskList(PendingTasks())
    a, b, c = tasks_of(3)
    for task in (a, b, c):
        bucket.add(task)
    b.cancel()
    assert (list(bucket), b.is_pending) == ([a, c], False)
    assert (bucket.pop_last(), bucket.pop_last()) == (c, a)


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
