"""The arrays of a bucket."""

from __future__ import annotations

from purgatory.timer.task import ARRAY_SIZE, PendingTasks, TaskArray, TimerTask

# A second name, which the compiler may make a plain C integer of.
_ARRAY_SIZE = ARRAY_SIZE


class ArrayList:
    """Arrays of tasks: one that takes more, which is the last, and those before it."""

    # Invariant: arrays[array.position] is array, for each that is there
    __slots__ = ("arrays", "gone", "last", "opened", "pending")

    # None for one that is gone.
    arrays: list[TaskArray | None]
    gone: int
    last: TaskArray | None
    # How many of the arrays a walk is done with.
    opened: int
    pending: PendingTasks

    def __init__(self, pending: PendingTasks) -> None:
        """Begin with none, in the timer whose tasks `pending` counts."""
        self.arrays = []
        self.gone = 0
        self.last = None
        self.opened = 0
        self.pending = pending

    def with_room(self) -> TaskArray:
        """Return the last array, which is a new one where the one before is full or gone.

        The caller adds a task to it at once.
        """
        last = self.last
        if last is None or len(last.items) >= _ARRAY_SIZE:
            if last is not None:
                last.owner = self
            array = TaskArray(self.pending)
            # Its place only now: to make it may run the collector, and with it what adds a task.
            array.position = len(self.arrays)
            self.arrays.append(array)
            self.last = array
            if array.position:
                # The first stays while it is the only one, for those that come and go by turns.
                array.owner = self
            return array
        return last

    def open_here(self) -> TaskArray | None:
        """Return the first array that may hold a task, opened; None where there is no task."""
        arrays = self.arrays
        while self.opened < len(arrays):
            array = arrays[self.opened]
            if array is not None and array.first < len(array.items):
                array.open()
                return array
            # At once: to let go of very many at the end would take long.
            arrays[self.opened] = None
            self.opened += 1
        return None

    def has_tasks_here(self) -> bool:
        """Say whether there is a task."""
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
        """Let go of an array that is empty. O(1), seen over many.

        At once: an object here and there is all that would keep the memory of very many tasks from
        being given back.
        """
        if array is self.last:
            self.last = None
        self.arrays[array.position] = None
        self.gone += 1
        if 2 * self.gone > len(self.arrays) and not self.opened:
            self._close_up()

    def _close_up(self) -> None:
        # In place: whatever is allocated while memory is given back may keep some of it.
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
