"""A task of the timer, which is its own entry in a bucket (Kafka: TimerTask, TimerTaskEntry)."""

from __future__ import annotations

from typing import Any, Final, NoReturn

try:
    # The compiler wants these very words here; without it a stand-in says that nobody compiled.
    import cython  # type: ignore[import-untyped,unused-ignore] # it ships no types
except ImportError:
    from purgatory.timer import not_compiled as cython

# 100 years. Sums with it stay far from the end of 64-bit nanoseconds (292 years), where Kafka's
# arithmetic overflows and runs the task at once.
MAX_DELAY_MS: Final = 100 * 366 * 24 * 3600 * 1000

NOT_SCHEDULED = -1

# With one place more, for the end of a walk, a list of 512 bytes: larger ones do not come from the
# same memory as the tasks, and are given back later or never. Each index is an int that plain
# Python has anyway. And where an array closes up, no more than this are moved.
ARRAY_SIZE: Final = 63


# So few places are kept where the tasks have left, instead of given back: at most 64 bytes.
_FEW: Final = 4


def raise_invalid_delay(delay_ms: object) -> NoReturn:
    """Say why `delay_ms` is no delay."""
    if type(delay_ms) is not int:
        raise TypeError(
            f"delay_ms is {delay_ms!r}, not an int: give whole milliseconds, such as 250"
        )
    raise ValueError(
        f"delay_ms is {delay_ms}, beyond the limit of {MAX_DELAY_MS} (100 years): keep such a task "
        "elsewhere, or leave it without a deadline"
    )


class PendingTasks:
    """How many tasks are pending in one timer. Shared by all of its buckets."""

    __slots__ = ("count",)

    count: int

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0


# Neither this nor the tasks are looked at by the cyclic collector, see TimerTask.
@cython.no_gc
@cython.cclass
class TaskArray:
    """Some of the tasks of a bucket, up to ARRAY_SIZE, in order of arrival.

    A task that leaves leaves a hole. Whoever walks all of a bucket touches tasks that are anywhere
    in memory, and spends most of the time waiting for it; in an array the next ones can be seen
    coming, and be fetched meanwhile, which no links allow: ahead one by one when compiled, and in
    plain Python all of an array at once.
    """

    # Invariant: items[task._index] is task, for each task with task._array is self
    # Invariant: is_open or first == 0 and holes == items.count(None)
    # Invariant: owner is None or there is a task
    __slots__ = ("first", "holes", "is_open", "items", "owner", "pending", "position")

    # Who is to let go of the array once it is empty, if anybody. Of any type, as the compiled form
    # wants it: the owner's type knows this one.
    owner: Any
    items: list[TimerTask | None]
    pending: PendingTasks
    # Its place among the arrays of its bucket.
    position: int
    # The holes, of an array that is not open.
    holes: int
    # Where the next task is to be looked for.
    first: int
    # Once it is, nobody but a walk over it changes its length.
    is_open: bool

    def __init__(self, pending: PendingTasks) -> None:
        """Make an empty array of the timer whose tasks `pending` counts."""
        self.owner = None
        self.items = []
        self.pending = pending
        self.position = 0
        self.holes = 0
        self.first = 0
        self.is_open = False
        if cython.compiled:
            # The collector would go through the tasks otherwise, to find that it need not.
            untrack(self.items)  # type: ignore[name-defined] # noqa: F821 - it is in c_list.pxd

    def has_tasks(self) -> bool:
        """Say whether there is a task."""
        if not self.is_open:
            return len(self.items) > self.holes
        rest = self.items[self.first :]
        return rest.count(None) < len(rest)

    def tasks(self) -> list[TimerTask]:
        """Return the tasks, in order of arrival."""
        return [task for task in self.items if task is not None]

    def append(self, task: TimerTask) -> None:
        """Put `task`, which is in no array, last. The caller sees that there is room."""
        # First what may fail, for want of memory.
        self.items.append(task)
        task._array = self
        task._index = len(self.items) - 1
        self.pending.count += 1

    def remove(self, task: TimerTask) -> None:
        """Take out `task`, which is in this array. O(1), seen over many."""
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
        """Begin a walk: from here on the array neither shrinks nor closes up."""
        if not self.is_open:
            # No task is last any more, so that none is popped when it leaves.
            self.items.append(None)
            self.is_open = True
            self.owner = None
            if cython.compiled:
                fetch_first(self.items)  # type: ignore[name-defined] # noqa: F821 - as above

    def close_up(self) -> None:
        """Let the holes go, unless somebody walks over the array."""
        if self.is_open:
            return
        # In place: to make any object may run the collector, and with it what cancels a task while
        # the places are not right.
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
        """Let go of the memory, now that the last task has left."""
        if self.holes:
            self.items.clear()
            self.holes = 0
        owner = self.owner
        if owner is not None:
            self.owner = None
            owner.drop(self)


# Compiled, tasks are outside the cyclic collector: it would visit every pending one again and
# again, which takes longer than all else. A timer lets go of them when it is closed or dropped.
# Written here and in the .pxd: what imports the one is not told by the other.
@cython.no_gc
@cython.cclass
class TimerTask:
    """Something to run once its delay has passed. Subclasses define `run`.

    A timer calls `run` on the thread that advances it. A task is in one bucket at most; adding it
    again reschedules it, and it may add itself again while it runs (a periodic task).

    Source: Kafka's `TimerTask` and `TimerTaskEntry`, in one object: the task knows its own place in
    its bucket, which saves a second object and a pointer to it for every pending timer.
    """

    __slots__ = ("_array", "_index", "delay_ms", "expiration_ms")

    # Where it is, while it is pending, and its place there.
    _array: TaskArray | None
    _index: int
    delay_ms: int
    # The deadline of the last time it was added, rounded up to a tick; NOT_SCHEDULED before that
    # and after `cancel`.
    expiration_ms: int

    def __init__(self, delay_ms: int) -> None:
        """Make a task that is due `delay_ms` whole milliseconds after it is added.

        Raises TypeError unless `delay_ms` is an int (a bool or a float is not), and ValueError
        beyond MAX_DELAY_MS.
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
        """Do the work. An exception is logged by the timer and stops no other task."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def cancel(self) -> bool:
        """Leave the timer; return True iff the task was pending. O(1), and idempotent."""
        array = self._array
        if array is None:
            return False
        self.expiration_ms = NOT_SCHEDULED
        array.remove(self)
        return True
