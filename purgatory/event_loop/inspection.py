"""Read access for operators: waits, keys, and the buckets of the wheel."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass

from purgatory.operations.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.operations.operation_listeners import Recorder
from purgatory.timer import Clock, SystemTimer
from purgatory.timer.task import NOT_SCHEDULED


@dataclass(frozen=True, slots=True)
class LevelBuckets:
    """One level of the timing wheel, with the fill of its buckets."""

    tick_ms: int
    size: int
    """Buckets of the level, empty ones included."""
    position: int
    """The index of the current bucket; the level turns through them in order."""
    tasks: int
    buckets: list[tuple[int, int]]
    """Index and number of tasks of each bucket that is not empty."""


class Inspection:
    """Reads a purgatory for operators, at no cost while it is not used.

    Times are those of the purgatory's timer, in milliseconds. Used on its thread.
    """

    __slots__ = ("_operations", "_timer", "_wall_offset_ms")

    def __init__(
        self, operations: DelayedOperationPurgatory, timer: SystemTimer, clock: Clock
    ) -> None:
        """Read `operations`, whose deadlines run on `timer`."""
        self._operations = operations
        self._timer = timer
        # Read once: a wait keeps its times, and so its place in a sorted list, from page to page.
        self._wall_offset_ms = clock.wall_ms() - timer.now_ms()

    def now_ms(self) -> int:
        """Return the time of the timer."""
        return self._timer.now_ms()

    def wall_ms(self, time_ms: int) -> int:
        """Return a time of the timer as milliseconds since 1970, UTC."""
        return time_ms + self._wall_offset_ms

    def watched(self) -> list[str]:
        """Return the watched keys that are strings, in the order of their first watch: a copy."""
        keys = self._operations.keys()
        return [key for key in keys if isinstance(key, str)]

    def count(self, key: str) -> int:
        """Return how many operations wait on `key`."""
        return self._operations.count(key)

    def watching(self, key: str) -> list[DelayedOperation]:
        """Return the operations on `key`, the oldest first."""
        return self._operations.watching(key)

    def oldest_start_ms(self, key: str) -> int | None:
        """Return since when the oldest operation on `key` waits; None if there is none. O(1)."""
        operation = self._operations.first(key)
        return None if operation is None else started_ms(operation)

    def levels(self) -> list[LevelBuckets]:
        """Return the levels of the timing wheel, the finest first."""
        now_ms = self._timer.now_ms()
        found = []
        for level in self._timer.wheel.levels():
            tick_ms, size = level.tick_ms, level.wheel_size
            buckets = [
                (bucket.expiration_ms // tick_ms % size, len(bucket)) for bucket in level.buckets()
            ]
            tasks = sum(count for _, count in buckets)
            found.append(
                LevelBuckets(tick_ms, size, now_ms // tick_ms % size, tasks, sorted(buckets))
            )
        return found

    def attach(self, recorder: Recorder) -> None:
        """Call `recorder` for operations from now on, until `detach`."""
        self._operations.add_listener(recorder)

    def keep_ended_in(self) -> None:
        """Have `ended_in` set from now on, which takes time for each operation."""
        self._operations.keeps_ended_in = True

    @property
    def ended_in(self) -> Context | None:
        """The context of the caller that ends an operation, while a recorder is called for it.

        None if that is the operation's own, in which recorders run.
        """
        return self._operations.ended_in

    def detach(self, recorder: Recorder) -> None:
        """Stop calling `recorder`."""
        self._operations.remove_listener(recorder)


def started_ms(operation: DelayedOperation) -> int:
    """Return when an operation began to wait, to a tick, by its timer.

    Nothing is stored for this: it is the deadline less the delay.
    """
    deadline_ms = operation.expiration_ms
    return 0 if deadline_ms == NOT_SCHEDULED else deadline_ms - operation.delay_ms
