"""The levels and buckets of the timing wheel (Kafka: TimingWheel); it never reads a clock."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter

try:
    # As in system_timer.py.
    import cython  # type: ignore[import-untyped,unused-ignore] # it ships no types
except ImportError:
    from purgatory.timer import not_compiled as cython

from purgatory.timer.task import ARRAY_SIZE, PendingTasks, TimerTask, TimerTaskList

# A second name, which the .pxd declares as a C integer.
_ARRAY_SIZE = ARRAY_SIZE

_expiration_ms = attrgetter("expiration_ms")


class TimingWheel:
    """One level of a hierarchical timing wheel, and the overflow wheel above it.

    A wheel of `wheel_size` buckets of `tick_ms` each spans `interval_ms = tick_ms * wheel_size`
    from its current time; later tasks go to the overflow wheel, whose tick is that span and which
    is created when first needed. A bucket expires at the start of its range: in the lowest wheel
    its tasks are due then, in a higher one they move down a level, to finer buckets.

    The caller controls the order: it pops `queue` up to the current time, empties each bucket that
    starts there (`take`, `cascade`), and advances the wheel (`advance_clock`).

    Source: Kafka's `TimingWheel`; Varghese and Lauck, Hashed and Hierarchical Timing Wheels (1987).
    """

    # Invariant: every bucket of `_buckets` that holds a task has its expiration_ms in `queue`.
    # Invariant: current_ms % tick_ms == 0, and no task is in a bucket that expires at or before it.
    __slots__ = (
        "_buckets",
        "current_ms",
        "interval_ms",
        "lower",
        "overflow",
        "pending",
        "queue",
        "tick_ms",
        "wheel_size",
    )

    def __init__(
        self, tick_ms: int, wheel_size: int, start_ms: int, *, lower: TimingWheel | None = None
    ) -> None:
        """Create a wheel whose time starts at `start_ms`, rounded down to a tick.

        An overflow wheel shares the count and the queue of `lower`, the level below it.
        Raises ValueError for a tick below 1 or fewer than 2 buckets.
        """
        if type(tick_ms) is not int or tick_ms < 1:
            raise ValueError(f"tick_ms is {tick_ms!r}: give a whole number of at least 1")
        if type(wheel_size) is not int or wheel_size < 2:
            raise ValueError(f"wheel_size is {wheel_size!r}: give a whole number of at least 2")
        self.tick_ms: int = tick_ms
        self.wheel_size: int = wheel_size
        self.interval_ms: int = tick_ms * wheel_size
        self.current_ms: int = start_ms - start_ms % tick_ms
        self.lower: TimingWheel | None = lower
        self.overflow: TimingWheel | None = None
        self.pending: PendingTasks = PendingTasks() if lower is None else lower.pending
        # A heap of bucket starts as plain ints, shared by all levels. One int is pushed per bucket
        # and round, not per task; two levels that share a start push it twice.
        self.queue: list[int] = [] if lower is None else lower.queue
        # Buckets are created when first needed: an upper wheel is mostly empty.
        self._buckets: list[TimerTaskList | None] = [None] * wheel_size

    def add(self, task: TimerTask) -> bool:
        """Add `task` to the bucket of its `expiration_ms`; return False iff it is due already.

        A task is due if it expires before the next tick. A cancelled task, whose expiration is
        NOT_SCHEDULED, counts as due.
        """
        expiration_ms = task.expiration_ms
        if expiration_ms < self.current_ms + self.tick_ms:
            return False
        wheel = self
        while expiration_ms >= wheel.current_ms + wheel.interval_ms:
            wheel = wheel.overflow if wheel.overflow is not None else wheel._add_overflow()
        wheel.bucket_for(expiration_ms).add(task)
        return True

    def bucket_for(self, expiration_ms: int) -> TimerTaskList:
        """Return this level's bucket for a time within its span; add it to the queue if new."""
        tick = expiration_ms // self.tick_ms
        index = tick % self.wheel_size
        bucket = self._buckets[index]
        if bucket is None:
            made = TimerTaskList(self.pending)
            # Read again: creating an object may run the collector, and so code that adds a task.
            bucket = self._buckets[index]
            if bucket is None:
                bucket = self._buckets[index] = made
        if bucket.set_expiration(tick * self.tick_ms):
            heappush(self.queue, bucket.expiration_ms)
        return bucket

    def take(self, start_ms: int) -> TimerTaskList | None:
        """Remove and return this level's bucket that expires at `start_ms`, or None. O(1)."""
        bucket = self._peek(start_ms)
        if bucket is not None:
            self._buckets[start_ms // self.tick_ms % self.wheel_size] = None
        return bucket

    def cascade(self, bucket: TimerTaskList, limit: int) -> int:
        """Move up to `limit` tasks of a taken bucket to the level below; return how many.

        They keep their order and get arrays of their own, which come first: tasks of the same tick
        in the lower wheel were added later, when that tick was within its span.
        """
        lower = self.lower
        assert lower is not None
        tick_ms, wheel_size, buckets = lower.tick_ms, lower.wheel_size, lower._buckets
        # In a local variable: in plain Python the attribute costs as much per task as the list.
        is_compiled_form = cython.compiled
        moved = 0
        while moved < limit:
            array = bucket.open_array()
            if array is None:
                break
            items = array.items
            first = array.first
            end = len(items)
            if end - first > limit - moved:
                end = first + limit - moved
            if not is_compiled_form:
                # To copy the references touches the tasks, many at once: see TaskArray.
                len(items[first:end])
            # Inlined, as in SystemTimer.add: one bucket may hold a million tasks.
            for index in range(first, end):
                if is_compiled_form:
                    fetch_ahead(items, index)  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
                task = items[index]
                if task is None:
                    moved -= 1
                    continue
                expiration_ms = task.expiration_ms
                if is_compiled_form:
                    finer = buckets[remainder(quotient(expiration_ms, tick_ms), wheel_size)]  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
                else:
                    finer = buckets[expiration_ms // tick_ms % wheel_size]
                if finer is not None and finer.expiration_ms == expiration_ms:
                    # In plain Python, all tasks of the bucket share one int, which makes one object
                    # less to free when the task runs.
                    task.expiration_ms = finer.expiration_ms
                elif (
                    finer is None or finer.expiration_ms != expiration_ms - expiration_ms % tick_ms
                ):
                    finer = lower.bucket_for(expiration_ms)
                descended = finer._descended
                target = None if descended is None else descended.last
                if target is None or len(target.items) >= _ARRAY_SIZE:
                    target = finer.descend_to()
                    if task._array is not array:
                        # Cancelled meanwhile, by code that the collector ran; see `bucket_for`.
                        target.close_up()
                        moved -= 1
                        continue
                places = target.items
                place = len(places)
                places.append(task)
                task._array = target
                task._index = place
                items[index] = None
            moved += end - first
            array.first = end
        return moved

    def advance_clock(self, time_ms: int) -> None:
        """Advance every level to `time_ms`, rounded down to the level's tick."""
        wheel: TimingWheel | None = self
        while wheel is not None and time_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = time_ms - time_ms % wheel.tick_ms
            wheel = wheel.overflow

    def levels(self) -> list[TimingWheel]:
        """Return every existing level, the lowest first."""
        levels = []
        wheel: TimingWheel | None = self
        while wheel is not None:
            levels.append(wheel)
            wheel = wheel.overflow
        return levels

    def buckets(self) -> list[TimerTaskList]:
        """Return this level's buckets that hold a task, in no particular order."""
        return [bucket for bucket in self._buckets if bucket]

    def next_expiration_ms(self) -> int | None:
        """Return the start of the earliest bucket, of any level, that holds a task, or None.

        Removes earlier starts from the queue, whose buckets are empty after cancellations.
        """
        queue = self.queue
        while queue:
            start_ms = queue[0]
            # No list of the levels, here and in `drop`: creating one may run the collector, and so
            # code that adds a task to a bucket that was found empty.
            wheel: TimingWheel | None = self
            while wheel is not None:
                if wheel._peek(start_ms):
                    return start_ms
                wheel = wheel.overflow
            self.drop(start_ms)
        return None

    def unqueue(self, start_ms: int) -> None:
        """Remove a bucket start that is first in the queue; its buckets were taken."""
        queue = self.queue
        while queue and queue[0] == start_ms:
            heappop(queue)

    def drop(self, start_ms: int) -> None:
        """Remove a bucket start that is first in the queue, with its empty buckets."""
        self.unqueue(start_ms)
        wheel: TimingWheel | None = self
        while wheel is not None:
            wheel.take(start_ms)
            wheel = wheel.overflow

    def clear(self) -> list[TimerTask]:
        """Remove every task from every level; return them in order of expiration."""
        # The upper levels first: of one tick, their tasks were added before those of lower levels.
        buckets = [bucket for wheel in reversed(self.levels()) for bucket in wheel.buckets()]
        tasks = sorted(chain.from_iterable(buckets), key=_expiration_ms)
        taken = []
        for task in tasks:
            array = task._array
            # None if it was cancelled since, by code that the collector ran.
            if array is not None:
                array.remove(task)
                taken.append(task)
        # Removes the buckets that are empty now: all, unless a task was added since.
        self.next_expiration_ms()
        return taken

    def _peek(self, start_ms: int) -> TimerTaskList | None:
        bucket = self._buckets[start_ms // self.tick_ms % self.wheel_size]
        return bucket if bucket is not None and bucket.expiration_ms == start_ms else None

    def _add_overflow(self) -> TimingWheel:
        made = TimingWheel(self.interval_ms, self.wheel_size, self.current_ms, lower=self)
        # Read again, as in `bucket_for`.
        if self.overflow is None:
            self.overflow = made
        return self.overflow
