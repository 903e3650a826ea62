"""Lists of task arrays, of which a bucket consists."""

from __future__ import annotations

from purgatory.timer.task import ARRAY_SIZE, PendingTasks, TaskArray, TimerTask

# A second name, which the .pxd declares as a C integer.
_ARRAY_SIZE = ARRAY_SIZE


class ArrayList:
    """Arrays of tasks in order of arrival; tasks are added to the last one."""

    # Invariant: arrays[array.position] is array, for each array in it
    __slots__ = ("arrays", "gone", "last", "opened", "pending")

    # None in place of a dropped array.
    arrays: list[TaskArray | None]
    # The number of dropped arrays.
    gone: int
    last: TaskArray | None
    # The number of arrays that have been run or moved.
    opened: int
    pending: PendingTasks

    def __init__(self, pending: PendingTasks) -> None:
        """Create an empty list in the timer whose tasks `pending` counts."""
        self.arrays = []
        self.gone = 0
        self.last = None
        self.opened = 0
        self.pending = pending

    def with_room(self) -> TaskArray:
        """Return the last array, or a new one if that is full or dropped.

        The caller adds a task to it immediately.
        """
        last = self.last
        if last is None or len(last.items) >= _ARRAY_SIZE:
            if last is not None:
                last.owner = self
            array = TaskArray(self.pending)
            # Read only now: creating an array may run the collector, and so code that adds a task.
            array.position = len(self.arrays)
            self.arrays.append(array)
            self.last = array
            if array.position:
                # A lone first array is kept when empty, for tasks that are added and cancelled in
                # turn.
                array.owner = self
            return array
        return last

    def open_here(self) -> TaskArray | None:
        """Return the first array that may hold a task, opened; None if there is no task."""
        arrays = self.arrays
        while self.opened < len(arrays):
            array = arrays[self.opened]
            if array is not None and array.first < len(array.items):
                array.open()
                return array
            # Freed one by one: to free very many at the end would take long.
            arrays[self.opened] = None
            self.opened += 1
        return None

    def has_tasks_here(self) -> bool:
        """Return True iff there is a task."""
        arrays = self.arrays
        for position in range(self.opened, len(arrays)):
            array = arrays[position]
            if array is not None and array.has_tasks():
                return True
        return False

    def tasks_here(self) -> list[TimerTask]:
        """Return the tasks, in order of arrival."""
        tasks: list[TimerTask] = []
        for array in self.arrays:
            if array is not None:
                tasks += array.tasks()
        return tasks

    def drop(self, array: TaskArray) -> None:
        """Drop an empty array. Amortized O(1).

        Immediately, because a few scattered objects would prevent the allocator from releasing the
        memory of very many tasks.
        """
        if array is self.last:
            self.last = None
        self.arrays[array.position] = None
        self.gone += 1
        if 2 * self.gone > len(self.arrays) and not self.opened:
            self._close_up()

    def _close_up(self) -> None:
        # In place: an object created while memory is released may keep a block of it in use.
        arrays = self.arrays
        count = 0
        for position in range(len(arrays)):
            array = arrays[position]
            if array is not None:
                array.position = count
                arrays[count] = array
                count += 1
        del arrays[count:]
        self.gone = 0
