"""A bucket of a wheel: the tasks with deadlines in one range (Kafka: TimerTaskList)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from purgatory.timer.array_list import ArrayList
from purgatory.timer.task import NOT_SCHEDULED, PendingTasks, TaskArray, TimerTask


class TimerTaskList(ArrayList):
    """A bucket: tasks in order of arrival, in arrays of a bounded size.

    Tasks from the level above were added before all tasks that were added here, however late they
    move down: they have arrays of their own, which come first.
    """

    # Invariant: all(task._array.pending is self.pending for task in self)
    __slots__ = ("_descended", "expiration_ms")

    # Created when first needed: no task moves down to most buckets.
    _descended: ArrayList | None
    expiration_ms: int

    def __init__(self, pending: PendingTasks) -> None:
        """Create an empty bucket of the timer whose tasks `pending` counts."""
        ArrayList.__init__(self, pending)
        self._descended = None
        self.expiration_ms = NOT_SCHEDULED

    def __len__(self) -> int:
        """Return the number of tasks, in O(n): a bucket has no counter."""
        return len(self.tasks())

    def __bool__(self) -> bool:
        """True iff there is a task."""
        return self.has_tasks()

    def __iter__(self) -> Iterator[TimerTask]:
        """Iterate over a copy, in order of arrival: the caller may remove tasks meanwhile."""
        return iter(self.tasks())

    def tasks(self) -> list[TimerTask]:
        """Return the tasks, in order of arrival."""
        descended = self._descended
        tasks = self.tasks_here()
        return tasks if descended is None else descended.tasks_here() + tasks

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set the start of the bucket's range; return True iff that changed it."""
        if self.expiration_ms == expiration_ms:
            return False
        self.expiration_ms = expiration_ms
        return True

    def add(self, task: TimerTask) -> None:
        """Append `task`, and remove it from the bucket that it was in."""
        array = task._array
        if array is not None:
            array.remove(task)
        self.with_room().append(task)

    def descend_to(self) -> TaskArray:
        """Return an array with room for a task from the level above."""
        descended = self._descended
        if descended is None:
            descended = self._descended = ArrayList(self.pending)
        return descended.with_room()

    def open_array(self) -> TaskArray | None:
        """Return the first array that may hold a task, opened; None if there is no task.

        No task may be added after the first such call.
        """
        descended = self._descended
        array = None if descended is None else descended.open_here()
        # Most buckets have either tasks from above or tasks that were added here.
        return self.open_here() if array is None and self.arrays else array

    def flush(self, consume: Callable[[TimerTask], object]) -> None:
        """Pass every task to `consume`, in order, and reset the bucket for its next round."""
        for task in self.tasks():
            array = task._array
            # None if an earlier task has cancelled it.
            if array is not None:
                array.remove(task)
                consume(task)
        self.expiration_ms = NOT_SCHEDULED

    def has_tasks(self) -> bool:
        """Return True iff there is a task."""
        descended = self._descended
        return self.has_tasks_here() or (descended is not None and descended.has_tasks_here())
