"""A task of the timer, which is its own entry in a bucket, and buckets.

Kafka: TimerTask, TimerTaskEntry and TimerTaskList.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NoReturn

try:
    # As in system_timer.py.
    import cython  # type: ignore[import-untyped,unused-ignore] # it ships no types
except ImportError:
    from purgatory.timer import not_compiled as cython

# 100 years. Sums with it stay far below the end of 64-bit nanoseconds (292 years), beyond which
# Kafka's arithmetic overflows and runs the task immediately.
MAX_DELAY_MS: Final = 100 * 366 * 24 * 3600 * 1000
"""The longest delay of a task, in milliseconds: 100 years."""

NOT_SCHEDULED = -1

# With one more place, for `open`, a list of 512 bytes: larger ones do not come from the allocator
# of small objects, which tasks use, and their memory is released later or never. The indexes are
# ints that Python caches. It also bounds the moves when an array closes up.
ARRAY_SIZE: Final = 63
# A second name, which the .pxd declares as a C integer.
_ARRAY_SIZE = ARRAY_SIZE

# An array whose tasks have left keeps this many places, at most 64 bytes, instead of shrinking.
_FEW: Final = 4


def raise_invalid_delay(delay_ms: object) -> NoReturn:
    """Raise TypeError or ValueError for an invalid `delay_ms`."""
    if type(delay_ms) is not int:
        raise TypeError(
            f"delay_ms is {delay_ms!r}, not an int: give whole milliseconds, such as 250"
        )
    raise ValueError(
        f"delay_ms is {delay_ms}, beyond the limit of {MAX_DELAY_MS} (100 years): keep such a task "
        "elsewhere, or leave it without a deadline"
    )


class PendingTasks:
    """The number of pending tasks of one timer, shared by all of its buckets."""

    __slots__ = ("count",)

    count: int

    def __init__(self) -> None:
        """Start at zero."""
        self.count = 0


# Outside the cyclic collector, like the tasks: see TimerTask.
@cython.no_gc
@cython.cclass
class TaskArray:
    """Up to ARRAY_SIZE tasks of a bucket, in order of arrival.

    A task that leaves leaves a hole. To run or move a bucket touches tasks that are scattered in
    memory, and most of the time is spent on cache misses. Unlike a linked list, an array allows to
    prefetch the next tasks: one by one when compiled, and all of an array in plain Python.
    """

    # Invariant: items[task._index] is task, for each task with task._array is self
    # Invariant: is_open or first == 0 and holes == items.count(None)
    # Invariant: owner is None or there is a task
    __slots__ = ("first", "holes", "is_open", "items", "owner", "pending", "position")

    # To notify when the array is empty.
    owner: ArrayList | None
    items: list[TimerTask | None]
    pending: PendingTasks
    # The index among the arrays of its bucket, which sets it.
    position: int
    # The number of holes, until the array is opened.
    holes: int
    # The index of the next task to run or move.
    first: int
    # An open array is being run or moved: its length does not change.
    is_open: bool

    def __init__(self, pending: PendingTasks) -> None:
        """Create an empty array of the timer whose tasks `pending` counts."""
        self.owner = None
        self.items = []
        self.pending = pending
        self.holes = 0
        self.first = 0
        self.is_open = False
        if cython.compiled:
            # The collector would traverse the list otherwise, without any use.
            untrack(self.items)  # type: ignore[name-defined] # noqa: F821 - it is in c_list.pxd

    def has_tasks(self) -> bool:
        """Return True iff there is a task."""
        if not self.is_open:
            return len(self.items) > self.holes
        rest = self.items[self.first :]
        return rest.count(None) < len(rest)

    def tasks(self) -> list[TimerTask]:
        """Return the tasks, in order of arrival."""
        return [task for task in self.items if task is not None]

    def append(self, task: TimerTask) -> None:
        """Append `task`, which is in no array. The caller makes sure that there is room."""
        # First, because it may raise MemoryError.
        self.items.append(task)
        task._array = self
        task._index = len(self.items) - 1
        self.pending.count += 1

    def remove(self, task: TimerTask) -> None:
        """Remove `task`, which is in this array. Amortized O(1)."""
        items = self.items
        index = task._index
        task._array = None
        self.pending.count -= 1
        if index == len(items) - 1:
            if cython.compiled and index < _FEW:
                drop_last(items)  # type: ignore[name-defined] # noqa: F821 - it is in c_list.pxd
            else:
                items.pop()
            if len(items) <= self.holes:
                self.become_empty()
            return
        items[index] = None
        holes = self.holes + 1
        self.holes = holes
        if holes * 4 > len(items) * 3:
            self.close_up()

    def open(self) -> None:
        """Prepare to run or move the tasks: the array then neither shrinks nor closes up."""
        if not self.is_open:
            # With None at the end, no task is the last one, which `remove` would pop.
            self.items.append(None)
            self.is_open = True
            self.owner = None
            if cython.compiled:
                fetch_first(self.items)  # type: ignore[name-defined] # noqa: F821 - as above

    def close_up(self) -> None:
        """Remove the holes, unless the array is open."""
        if self.is_open:
            return
        # In place: creating an object may run the collector, and so code that cancels a task while
        # the indexes are wrong.
        items = self.items
        count = 0
        for index in range(len(items)):
            task = items[index]
            if task is not None:
                task._index = count
                items[count] = task
                count += 1
        while len(items) > count:
            items.pop()
        self.holes = 0
        if not count:
            self.become_empty()

    def become_empty(self) -> None:
        """Release the memory after the last task has left."""
        if self.holes:
            self.items.clear()
            self.holes = 0
        owner = self.owner
        if owner is not None:
            self.owner = None
            owner.drop(self)


# Compiled tasks are outside the cyclic collector, which would visit every pending task again and
# again; that takes longer than all else. A timer releases its tasks when it is closed or freed.
# Stated here and in the .pxd, because modules import either.
@cython.no_gc
@cython.cclass
class TimerTask:
    """Something to run once its delay has passed. Subclasses define `run`.

    A timer calls `run` on the thread that advances it. A task is in one bucket at most; adding it
    again reschedules it, and it may add itself again while it runs (a periodic task).

    Source: Kafka's `TimerTask` and `TimerTaskEntry`, in one object: the task stores its own place
    in its bucket, which saves an object and a pointer for every pending timer.
    """

    __slots__ = ("_array", "_index", "delay_ms", "expiration_ms")

    # Its array while it is pending, and its index there.
    _array: TaskArray | None
    _index: int
    delay_ms: int
    # The deadline set by the last `add`, rounded up to a tick; NOT_SCHEDULED before that and after
    # `cancel`.
    expiration_ms: int

    def __init__(self, delay_ms: int) -> None:
        """Create a task that is due `delay_ms` whole milliseconds after it is added.

        Raises TypeError unless `delay_ms` is an int (not a bool or float), and ValueError above
        MAX_DELAY_MS.
        """
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            raise_invalid_delay(delay_ms)
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._array = None

    @property
    def is_pending(self) -> bool:
        """True iff the task is in a bucket: added, and neither run nor cancelled since."""
        return self._array is not None

    def run(self) -> None:
        """Do the work. The timer logs an exception and continues with the next task."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def cancel(self) -> bool:
        """Remove the task from the timer; return True iff it was pending. O(1), idempotent."""
        array = self._array
        if array is None:
            return False
        self.expiration_ms = NOT_SCHEDULED
        array.remove(self)
        return True


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


class TimerTaskList(ArrayList):
    """A bucket: the tasks with deadlines in one range, in arrays of a bounded size.

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
