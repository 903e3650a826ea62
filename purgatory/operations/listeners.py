"""The one hook on the life of operations, on which a journal and metrics hang."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation
    from purgatory.status import Status
    from purgatory.timer.system_timer import SystemTimer

Record = Callable[
    ["DelayedOperation", "Status", tuple[Hashable, ...], Hashable | None, int], object
]
"""What is called with operation, status, keys, key and deadline: an OperationEvent taken apart."""


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One step in the life of an operation: watched (status "pending"), or ended (any other)."""

    operation: DelayedOperation
    status: Status
    keys: tuple[Hashable, ...]
    key: Hashable | None
    """The key whose check completed it; None where no key did."""
    at_ms: int
    """The timer's clock at the event: monotonic milliseconds."""
    deadline_ms: int
    """When the operation was to expire, on the same clock and rounded up to a tick."""


class Listener(Protocol):
    """Told of every event, at once, on the thread of the purgatory: it must not block.

    An exception that it raises is logged and changes nothing.
    """

    def __call__(self, event: OperationEvent, /) -> None:
        """Take note of `event`."""
        ...


class Recorder(Protocol):
    """Told as a Listener is, without an event: making one costs more than taking it.

    Something that cannot be called, or it would be a Listener. Give it to the purgatory as one; the
    same holds for it.
    """

    @property
    def record(self) -> Record:
        """Asked for once; what it returns is called in place of the listener."""
        ...


@runtime_checkable
class JobRecorder(Protocol):
    """A Listener or Recorder that is told, too, how delayed jobs ended; the same holds for it.

    Whatever has this method is one. Of a job that ended the process tells that ended it, by running
    or by cancelling it, once its store has it so. To cancel it again tells it again.
    """

    def job_event(
        self,
        status: Status,
        *,
        job_id: str,
        handler: str,
        state: str,
        deferred_at_ms: int,
        deadline_ms: int,
        keys: Iterable[str] = (),
        key: str | None = None,
        attempt: int = 0,
        error: str | None = None,
        lateness_ms: int | None = None,
    ) -> None:
        """Take note of a job whose `state` is final; times are milliseconds UTC, by its store.

        `status` is what decided it, `key` the one that fired, `lateness_ms` that of its first
        start, None if there was none.
        """
        ...


def record_of(listener: Listener | Recorder, timer: SystemTimer) -> Record:
    """Return what the purgatory calls to tell `listener` of an event."""
    # Whoever can be called is a Listener, though something of his may be called `record`.
    return _EventMaker(listener, timer) if callable(listener) else listener.record


class _EventMaker:
    """Tells a listener of an event as an object, with the time."""

    __slots__ = ("_listener", "_timer")

    def __init__(self, listener: Listener, timer: SystemTimer) -> None:
        self._listener = listener
        self._timer = timer

    def __call__(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        """Make the event, and hand it on."""
        now_ms = self._timer.now_ms()
        self._listener(OperationEvent(operation, status, keys, key, now_ms, deadline_ms))

    def __repr__(self) -> str:
        """Name the listener."""
        return repr(self._listener)
