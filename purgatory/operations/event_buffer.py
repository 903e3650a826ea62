"""Where events wait for a thread that writes them down."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from purgatory.timer import compiled
from purgatory.timer.clock import Clock, SystemClock

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation
    from purgatory.status import Status

RawEvent = tuple[Any, ...]
"""(id of the operation, its class, status, keys, key, deadline_ms, monotonic ns)."""

GAP: Final[RawEvent] = ()
"""Stands among the events where others were dropped."""


class EventBuffer:
    """Keeps events in order, up to a bound and a GAP; a Recorder does it with `record`.

    One thread puts, which is the purgatory's and never waits, and one other takes. There is no
    lock: appending to a list, copying its beginning and deleting that are each one step for the
    interpreter.

    An operation is not held, or it would live on until its event is taken, and die on the other
    thread: what is known of it is its id, which is good for as long as it waits.
    """

    __slots__ = ("_events", "_is_system", "_limit", "_now_ns", "dropped")

    def __init__(self, limit: int, clock: Clock) -> None:
        """Keep up to `limit` events, with times of `clock`."""
        self._events: list[RawEvent] = []
        self._limit: int = limit
        self._now_ns = clock.now_ns
        # The compiled form asks the system without a Python call in between.
        self._is_system: bool = type(clock) is SystemClock
        # How many there was no room for.
        self.dropped: int = 0

    def __len__(self) -> int:
        """Return how many wait to be taken."""
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
        """Keep what happened, and when, or count it as dropped."""
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
        """Keep an event of another shape, or count it as dropped."""
        if len(self._events) >= self._limit:
            self._drop()
        else:
            self._events.append(event)

    def take(self, most: int) -> list[RawEvent]:
        """Remove and return the oldest events, up to `most`; GAP stands where some are missing."""
        events = self._events[:most]
        del self._events[: len(events)]
        return events

    def _drop(self) -> None:
        self.dropped += 1
        # Said at the very place, and once, however many are missing: a count that is read some time
        # later does not tell what was kept before from what was kept behind. The other thread may
        # have taken all meanwhile, so that there is no last one.
        if self._events[-1:] != [GAP]:
            self._events.append(GAP)
