"""A task of the timer, which is its own entry in a bucket (Kafka: TimerTask, TimerTaskEntry)."""

from __future__ import annotations

from typing import Final, NoReturn

try:
    # The compiler wants these very words here; without it a stand-in says that nobody compiled.
    import cython  # type: ignore[import-untyped,unused-ignore] # it ships no types
except ImportError:
    from purgatory.timer import not_compiled as cython

# 100 years. Sums with it stay far from the end of 64-bit nanoseconds (292 years), where Kafka's
# arithmetic overflows and runs the task at once.
MAX_DELAY_MS: Final = 100 * 366 * 24 * 3600 * 1000

NOT_SCHEDULED = -1


def refuse_delay(delay_ms: object) -> NoReturn:
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
    """The tasks that are pending in one timer: how many, and the way out for each.

    Shared by all the buckets of the timer, and known to every task in one of them. A task knows
    this rather than its bucket: that is enough to leave, and it is the same in every bucket.
    """

    __slots__ = ("count",)

    count: int

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0

    def remove(self, task: TimerTask) -> None:
        """Take `task`, which is pending here, out of its bucket. O(1)."""
        previous = task._previous
        following = task._next
        # A pending task has neighbours: the bucket's own root, if nobody else.
        previous._next = following  # type: ignore[union-attr] # see above
        following._previous = previous  # type: ignore[union-attr] # see above
        task._pending = None
        task._next = None
        task._previous = None
        self.count -= 1


# Compiled, tasks are outside the cyclic collector: it would visit every pending one again and
# again, which takes longer than all else. A timer undoes the links between them when it is closed
# or dropped. Written here and in the .pxd: what imports the one is not told by the other.
@cython.no_gc
@cython.cclass
class TimerTask:
    """Something to run once its delay has passed. Subclasses define `run`.

    A timer calls `run` on the thread that advances it. A task is in one bucket at most; adding it
    again reschedules it, and it may add itself again while it runs (a periodic task).

    Source: Kafka's `TimerTask` and `TimerTaskEntry`, in one object: the task is the list node,
    which saves a second object and a pointer to it for every pending timer.
    """

    # Invariant: a task with _pending has both neighbours; one without has none, or None.
    __slots__ = ("_next", "_pending", "_previous", "delay_ms", "expiration_ms")

    _next: TimerTask | None
    _pending: PendingTasks | None
    _previous: TimerTask | None
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
            refuse_delay(delay_ms)
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._pending = None

    @property
    def is_pending(self) -> bool:
        """True iff the task is in a bucket: added, and neither run nor cancelled since."""
        return self._pending is not None

    def run(self) -> None:
        """Do the work. An exception is logged by the timer and stops no other task."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def cancel(self) -> bool:
        """Leave the timer; return True iff the task was pending. O(1), and idempotent."""
        pending = self._pending
        if pending is None:
            return False
        # PendingTasks.remove, written out: leaving is as hot as coming.
        previous = self._previous
        following = self._next
        previous._next = following  # type: ignore[union-attr] # a pending task has neighbours
        following._previous = previous  # type: ignore[union-attr] # as above
        self._pending = None
        self._next = None
        self._previous = None
        self.expiration_ms = NOT_SCHEDULED
        pending.count -= 1
        return True
