"""A bounded buffer of events between the purgatory's thread and the journal's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from purgatory.timer import compiled
from purgatory.timer.clock import Clock, SystemClock

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation
    from purgatory.outcome import Status

RawEvent = tuple[Any, ...]
"""(id of the operation, its class, status, keys, key, deadline_ms, monotonic ns).

One of the journal may have one more element: what it has read of labels.
"""

GAP: Final[RawEvent] = ()
"""Marks the place of dropped events in the buffer."""


class EventBuffer:
    """A Recorder that buffers events in order, up to a limit; a GAP marks dropped ones.

    The purgatory's thread puts and never blocks; one other thread takes. No lock is needed: to
    append to a list, to copy its beginning and to delete that are each atomic in the interpreter.

    Events hold the id of an operation, which is unique while it waits, not the operation: that
    would live until its event is taken, and be freed on the other thread.
    """

    __slots__ = ("_events", "_is_system", "_limit", "_now_ns", "dropped")

    def __init__(self, limit: int, clock: Clock) -> None:
        """Create an empty buffer for up to `limit` events, timed by `clock`."""
        self._events: list[RawEvent] = []
        self._limit: int = limit
        self._now_ns = clock.now_ns
        # The compiled form reads the system's clock without a call of Python.
        self._is_system: bool = type(clock) is SystemClock
        # How many events were dropped because the buffer was full.
        self.dropped: int = 0

    def __len__(self) -> int:
        """Return how many events are buffered."""
        return len(self._events)

    def __bool__(self) -> bool:
        """True: an empty buffer is still a buffer."""
        return True

    def record(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        """Buffer an event of an operation with the time, or count it as dropped."""
        events = self._events
        if len(events) >= self._limit:
            self._drop()
            return
        if compiled and self._is_system:
            now_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            now_ns = self._now_ns()
        events.append((id(operation), operation.__class__, status, keys, key, deadline_ms, now_ns))

    def put(self, event: RawEvent) -> None:
        """Buffer an event of another kind, or count it as dropped."""
        if len(self._events) >= self._limit:
            self._drop()
        else:
            self._events.append(event)

    def take(self, limit: int) -> list[RawEvent]:
        """Remove and return up to `limit` of the oldest events; a GAP marks missing ones."""
        events = self._events[:limit]
        del self._events[: len(events)]
        return events

    def _drop(self) -> None:
        self.dropped += 1
        # One GAP in the place of all that are missing: a count alone would not show which events
        # came before them. The list may be empty, if the other thread has taken all meanwhile.
        if self._events[-1:] != [GAP]:
            self._events.append(GAP)
