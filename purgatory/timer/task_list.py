"""One bucket of a wheel: the tasks whose deadlines fall into one range (Kafka: TimerTaskList)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from purgatory.timer.task import NOT_SCHEDULED, PendingTasks, TimerTask


class TimerTaskList:
    """A bucket: a circular, doubly linked list through the tasks themselves, in order of arrival.

    Linked rather than a set or a dict: there is no table to grow, removal touches three objects,
    and a pending timer costs no second object. Measured faster than both even in plain Python.
    """

    # Invariant: all(task._pending is self._pending for task in self)
    __slots__ = ("_pending", "_root", "expiration_ms")

    _pending: PendingTasks
    _root: TimerTask
    expiration_ms: int

    def __init__(self, pending: PendingTasks) -> None:
        """Make an empty bucket of the timer whose tasks `pending` counts."""
        self._pending = pending
        self.expiration_ms = NOT_SCHEDULED
        # The sentinel is a task that never runs, so that linking needs no special case.
        root = TimerTask(0)
        root._next = root
        root._previous = root
        self._root = root

    def __len__(self) -> int:
        """Count the tasks, in O(n): a bucket keeps no count of its own."""
        return len(self.tasks())

    def __bool__(self) -> bool:
        """True iff there is a task, in O(1)."""
        return self._has_tasks()

    def __iter__(self) -> Iterator[TimerTask]:
        """Walk a copy, in order of arrival: a caller may remove tasks as it goes."""
        return iter(self.tasks())

    def tasks(self) -> list[TimerTask]:
        """Return the tasks, in order of arrival."""
        tasks = []
        task = self._root._next
        while task is not None and task is not self._root:
            tasks.append(task)
            task = task._next
        return tasks

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set the start of the bucket's range; return True iff that changed it."""
        if self.expiration_ms == expiration_ms:
            return False
        self.expiration_ms = expiration_ms
        return True

    def add(self, task: TimerTask) -> None:
        """Put `task` last, taking it out of the bucket that it was in."""
        self._release(task)
        root = self._root
        last = root._previous
        task._pending = self._pending
        task._previous = last
        task._next = root
        last._next = task  # type: ignore[union-attr] # a root always has neighbours
        root._previous = task
        self._pending.count += 1

    def add_first(self, task: TimerTask) -> None:
        """Put `task` first, taking it out of the bucket that it was in."""
        self._release(task)
        root = self._root
        first = root._next
        task._pending = self._pending
        task._previous = root
        task._next = first
        first._previous = task  # type: ignore[union-attr] # a root always has neighbours
        root._next = task
        self._pending.count += 1

    def pop_first(self) -> TimerTask | None:
        """Take out and return the task that came first, or None where the bucket is empty."""
        task = self._root._next
        if task is None or task is self._root:
            return None
        self._pending.remove(task)
        return task

    def pop_last(self) -> TimerTask | None:
        """Take out and return the task that came last, or None where the bucket is empty."""
        task = self._root._previous
        if task is None or task is self._root:
            return None
        self._pending.remove(task)
        return task

    def flush(self, consume: Callable[[TimerTask], object]) -> None:
        """Hand every task to `consume`, in order, and leave the bucket free for the next round."""
        for task in self.tasks():
            # A task that an earlier one cancelled is no longer there to hand over.
            if task._pending is not None:
                task._pending.remove(task)
                consume(task)
        self.expiration_ms = NOT_SCHEDULED

    def _has_tasks(self) -> bool:
        return self._root._next is not self._root

    def _release(self, task: TimerTask) -> None:
        if task._pending is not None:
            task._pending.remove(task)
