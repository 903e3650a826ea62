"""A task of the timer, which is its own entry in a bucket (Kafka: TimerTask, TimerTaskEntry)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.timer.task_list import TimerTaskList

NOT_SCHEDULED = -1


class TimerTask:
    """Something to run once its delay has passed. Subclasses define `run`.

    A timer calls `run` on the thread that advances it. A task is in one bucket at most; adding it
    again reschedules it, and it may add itself again while it runs (a periodic task).

    Source: Kafka's `TimerTask` and `TimerTaskEntry`, in one object: the task is the list node,
    which saves a second object and a pointer to it for every pending timer.
    """

    # Invariant: (self._list is None) == (self._next is None) == (self._previous is None)
    __slots__ = ("_list", "_next", "_previous", "delay_ms", "expiration_ms")

    _list: TimerTaskList | None
    _next: TimerTask | None
    _previous: TimerTask | None
    delay_ms: int
    # The deadline of the last time it was added, rounded up to a tick; NOT_SCHEDULED before that
    # and after `cancel`.
    expiration_ms: int

    def __init__(self, delay_ms: int) -> None:
        """Make a task that is due `delay_ms` whole milliseconds after it is added.

        Raises TypeError unless `delay_ms` is an int (a bool or a float is not).
        """
        if type(delay_ms) is not int:
            raise TypeError(
                f"delay_ms is {delay_ms!r}, not an int: give whole milliseconds, such as 250"
            )
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._list = None
        self._next = None
        self._previous = None

    @property
    def is_pending(self) -> bool:
        """True iff the task is in a bucket: added, and neither run nor cancelled since."""
        return self._list is not None

    def run(self) -> None:
        """Do the work. An exception is logged by the timer and stops no other task."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def cancel(self) -> bool:
        """Leave the timer; return True iff the task was pending. O(1), and idempotent."""
        task_list = self._list
        if task_list is None:
            return False
        task_list.remove(self)
        self.expiration_ms = NOT_SCHEDULED
        return True
