"""Listeners on the life cycle of operations and jobs, such as a journal or metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation
    from purgatory.outcome import Status
    from purgatory.timer.system_timer import SystemTimer

Record = Callable[
    ["DelayedOperation", "Status", tuple[Hashable, ...], Hashable | None, int], object
]
"""Called with operation, status, keys, key and deadline_ms, the fields of an OperationEvent."""


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """A change of an operation: it is watched (status "pending"), or has ended (any other)."""

    operation: DelayedOperation
    status: Status
    keys: tuple[Hashable, ...]
    key: Hashable | None
    """The key whose check completed it; None if no check did."""
    at_ms: int
    """The time of the event on the timer's clock: monotonic milliseconds."""
    deadline_ms: int
    """When the operation expires, on the same clock, rounded up to a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """The end of a job, or of one of its rounds. Times are the store's, milliseconds UTC."""

    status: Status
    """What decided it."""
    job_id: str
    handler: str
    state: str
    """Final, or "waiting" if the job waits again."""
    deferred_at_ms: int
    """When the round began."""
    deadline_ms: int
    keys: tuple[str, ...] = ()
    key: str | None = None
    """The key that fired."""
    attempt: int = 0
    error: str | None = None
    lateness_ms: int | None = None
    """Of its first start; None if it never started."""
    round_number: int = 0
    """How often the job had waited again."""
    at_ms: int | None = None
    """When the round ended, as if the store's clock had not been set; None if that is unknown."""


class Listener(Protocol):
    """Called immediately for every event, on the purgatory's thread: it must not block.

    In the context (`contextvars`) of who parks, or at the end in a copy of that: not in that of who
    fires. An exception that it raises is logged and has no other effect.
    """

    def __call__(self, event: OperationEvent, /) -> None:
        """Handle `event`."""
        ...


class Recorder(Protocol):
    """A faster Listener: its `record` gets the fields of each event, and no object is created.

    Pass it to the purgatory like a Listener; the same rules apply. A Recorder must not be callable:
    a callable counts as a Listener.
    """

    @property
    def record(self) -> Record:
        """The function to call for each event; read once."""
        ...


@runtime_checkable
class JobRecorder(Protocol):
    """A Listener or Recorder that is also called for delayed jobs that ended.

    Any listener with this method is one. The process that ended a job, by running or cancelling it,
    calls it after the store has recorded that. Cancelling the job again calls it again.
    """

    def job_event(self, event: JobEvent, /) -> None:
        """Handle `event`."""
        ...


def record_of(listener: Listener | Recorder, timer: SystemTimer) -> Record:
    """Return the function that passes an event to `listener`."""
    # Any callable is a Listener, even one with an attribute `record`.
    return _EventMaker(listener, timer) if callable(listener) else listener.record


class _EventMaker:
    """Passes events to a listener as objects, with the time."""

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
        """Create the event and pass it to the listener."""
        now_ms = self._timer.now_ms()
        self._listener(OperationEvent(operation, status, keys, key, now_ms, deadline_ms))

    def __repr__(self) -> str:
        """Return the listener's name."""
        return repr(self._listener)


def kind_of(cls: type) -> str:
    """Return what listeners call the operations of `cls`: its `kind`, else its name."""
    kind: object = getattr(cls, "kind", None)
    # Not a string: a property or a slot, whose value is that of an operation, unknown here.
    return kind if isinstance(kind, str) else cls.__name__
