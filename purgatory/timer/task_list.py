"""One bucket of a wheel: the tasks whose deadlines fall into one range (Kafka: TimerTaskList)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from purgatory.timer.array_list import ArrayList
from purgatory.timer.task import NOT_SCHEDULED, PendingTasks, TaskArray, TimerTask


class TimerTaskList(ArrayList):
    """A bucket: tasks in order of arrival, in arrays of a bounded size.

    Those that came down from the level above were there before those that were added here, however
    late they come down: so they have arrays of their own, which come first.
    """

    # Invariant: all(task._array.pending is self.pending for task in self)
    __slots__ = ("_descended", "expiration_ms")

    # Made when first needed: most buckets see no task come down.
    _descended: ArrayList | None
    expiration_ms: int

    def __init__(self, pending: PendingTasks) -> None:
        """Make an empty bucket of the timer whose tasks `pending` counts."""
        ArrayList.__init__(self, pending)
        self._descended = None
        self.expiration_ms = NOT_SCHEDULED

    def __len__(self) -> int:
        """Count the tasks, in O(n): a bucket keeps no count of its own."""
        return len(self.tasks())

    def __bool__(self) -> bool:
        """True iff there is a task."""
        return self.has_tasks()

    def __iter__(self) -> Iterator[TimerTask]:
        """Walk a copy, in order of arrival: a caller may remove tasks as it goes."""
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
        """Put `task` last, taking it out of the bucket that it was in."""
        array = task._array
        if array is not None:
            array.remove(task)
        self.with_room().append(task)

    def descend_to(self) -> TaskArray:
        """Return an array with room for one that was in this range before all that was added."""
        descended = self._descended
        if descended is None:
            descended = self._descended = ArrayList(self.pending)
        return descended.with_room()

    def open_array(self) -> TaskArray | None:
        """Return the first array that may hold a task, opened; None where there is no task.

        Nothing may be added from the first such call on.
        """
        descended = self._descended
        array = None if descended is None else descended.open_here()
        # Most buckets have either those that came down or those that were added here.
        return self.open_here() if array is None and self.arrays else array

    def flush(self, consume: Callable[[TimerTask], object]) -> None:
        """Hand every task to `consume`, in order, and leave the bucket free for the next round."""
        for task in self.tasks():
            array = task._array
            # A task that an earlier one cancelled is no longer there to hand over.
            if array is not None:
                array.remove(task)
                consume(task)
        self.expiration_ms = NOT_SCHEDULED

    def has_tasks(self) -> bool:
        """Say whether there is a task."""
        descended = self._descended
        return self.has_tasks_here() or (descended is not None and descended.has_tasks_here())
