"""The operation behind `Purgatory.park`."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final

from purgatory.event_loop.wake_ups import WakeUps
from purgatory.outcome import Outcome, Status
from purgatory.signals.memory import MemorySignals
from purgatory.signals.signal import Signal
from purgatory.signals.wait_operation import ANY, WaitOperation
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock
from purgatory.timer.task import NOT_SCHEDULED

# What the constructor of a named tuple calls, without a call of Python in between.
_new_tuple = tuple.__new__
_CANCELLED = Status.CANCELLED
_FIRED = Status.FIRED
_OUTDATED = Status.OUTDATED
_PENDING = Status.PENDING
_NOT_BY_TASK: Final = object()


class ParkOperation(WaitOperation):
    """A wait that is its own awaitable: no future, handle or closure for each call.

    It has the part of a future that `asyncio.Task` uses: `_asyncio_future_blocking`, `_loop`,
    `add_done_callback`, `cancel(msg)` and `result`. One task awaits it, once.

    Created by `new_park`. Do not subclass it elsewhere: the compiled form calls its methods
    statically.
    """

    kind = "park"

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_clock",
        "_error",
        "_loop",
        "_started_ns",
        "_task_context",
        "_wake_ups",
        "outcome",
    )

    outcome: Outcome | None
    """The result; None while it is pending, and if the call failed."""
    # The exception to raise in the task.
    _error: BaseException | None
    # Resumes the task in its context, while it waits.
    _callback: Callable[[Any], object] | None
    _task_context: Context | None
    _asyncio_future_blocking: bool
    _loop: AbstractEventLoop
    _wake_ups: WakeUps
    _clock: Clock
    _started_ns: int

    def __await__(self) -> Generator[Any, None, None]:
        """Suspend the task until the operation has ended; raise its error."""
        if self.status is not _PENDING:
            self.result()
            return iter(())  # type: ignore[return-value] # an iterator is all that is needed
        if self._callback is not None:
            raise RuntimeError(f"{self!r} is awaited by another task already")
        self._asyncio_future_blocking = True
        # Yields itself, once. A generator would do the same, but slower.
        return iter((self,))  # type: ignore[return-value] # as above

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Resume the task by `callback(self)` in `context`; called by the task when it suspends."""
        self._callback = callback
        self._task_context = context

    def result(self) -> Outcome | None:
        """Return the outcome, or raise the error; called by the task when it resumes."""
        error = self._error
        if error is not None:
            self._error = None
            try:
                raise error
            finally:
                # Or it and its traceback, which has this frame, would keep each other.
                del error
        return self.outcome

    def cancel(self, msg: object = _NOT_BY_TASK) -> bool:
        """Cancel the operation unless it already ended; return True iff this call did it.

        The awaiting task calls this with a message when the task itself is cancelled: that raises
        CancelledError in the task. Otherwise the task gets an outcome with status "cancelled".
        """
        if msg is _NOT_BY_TASK:
            return self._cancel(_CANCELLED)
        if self.status is not _PENDING:
            return False
        self._error = CancelledError() if msg is None else CancelledError(msg)
        return self._cancel(_CANCELLED)

    def on_complete(self) -> None:
        """Set the outcome, and resume the task if it is suspended."""
        if self.status is _OUTDATED:
            self._error = self.signals.loss(self.watched_keys, self.positions)
        elif self._error is None and not self.is_abandoned:
            key, value, position = self._read()
            signals = self.signals
            if signals.is_shared:
                cursor = signals.cursor_after(self.watched_keys, self.positions, key, position)
            else:
                cursor = signals.cursor(position)
            if compiled and type(self._clock) is SystemClock:
                now_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
            else:
                now_ns = self._clock.now_ns()
            waited_ms = (now_ns - self._started_ns) // NS_PER_MS
            fields = (self.status, key, value, cursor, waited_ms)
            if compiled:
                self.outcome = new_tuple(Outcome, fields)  # type: ignore[name-defined] # noqa: F821 - as above
            else:
                self.outcome = _new_tuple(Outcome, fields)
        self._resume()

    def _is_outdated(self, status: Status) -> bool:
        # In memory, a signal that is no longer kept has fired all the same.
        signals = self.signals
        return signals.is_shared and signals.loss(self.watched_keys, self.positions) is not None

    def _resume(self) -> None:
        callback = self._callback
        if callback is not None:
            assert self._task_context is not None
            self._wake_ups.add(callback, self, self._task_context)
            # Released, because they form a cycle with the task.
            self._callback = self._task_context = None

    def _listener_context(self) -> Context | None:
        return self._task_context

    def _try(self) -> bool:
        return WaitOperation.try_complete(self)

    def _complete(self) -> None:
        self.on_complete()

    def _read(self) -> tuple[str | None, object, int]:
        """Return key, value and position of the outcome."""
        signals, keys = self.signals, self.watched_keys
        position, positions = self.position, self._positions
        # The oldest retained signal of any key after its position.
        first: Signal | None = None
        for index in range(len(keys)):
            if positions is not None:
                position = positions[index]
            signal = signals.first_after(keys[index], position)
            if signal is not None and (first is None or signal.offset < first.offset):
                first = signal
        if self.status is not _FIRED:
            # A signal that was appended but not tried yet is for the next wait.
            return None, None, signals._head if first is None else first.offset - 1
        if first is not None:
            # A cursor just after it: the next wait returns the other signals.
            return first.key, signals.value(first), first.offset
        # The signal was trimmed, or the operation was completed by `force_complete`.
        return self._fired_key(), None, signals._head

    def _fired_key(self) -> str | None:
        """Return the first key that fired, even if its signal was trimmed."""
        for key, position in zip(self.watched_keys, self.positions, strict=True):
            if self.signals.has_after(key, position, 1):
                return key
        return None


class PredicateParkOperation(ParkOperation):
    """A park that ends when `until()` is true; it is tried again whenever a key fires."""

    __slots__ = ("_key", "_until")

    _until: Callable[[], object]
    # The key whose check found that the predicate holds.
    _key: str | None

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """As in ParkOperation; the predicate runs in a copy of `context` from now on."""
        self._parked_in = context
        ParkOperation.add_done_callback(self, callback, context=context)

    def try_complete(self) -> bool:
        """Complete if the predicate holds; its error is raised in the caller."""
        return self._try()

    def _is_outdated(self, status: Status) -> bool:
        # The predicate says so.
        return False

    def _listener_context(self) -> Context | None:
        # It ends in the context of its predicate, which is that of the task.
        return None

    def _try(self) -> bool:
        try:
            is_true = self._until()
        except Exception as exc:
            # Raised in the caller immediately, not at the deadline.
            return self._fail(exc)
        if is_true is not True and isinstance(is_true, Coroutine):
            is_true.close()
            return self._fail(
                TypeError(
                    "until is an async function, which would always be true: give a plain one that "
                    "reads memory; for a database, await it and park(...) in a loop, with the "
                    "cursor of each outcome"
                )
            )
        if not is_true:
            return False
        purgatory = self._purgatory
        if purgatory is not None:
            checked: Any = purgatory.current_key
            # Another operation's key is current if its callback tries this operation.
            self._key = checked if checked in self.watched_keys else None
        return self.force_complete()

    def _fail(self, error: Exception) -> bool:
        if self.status is not _PENDING:
            return False
        if isinstance(error, StopIteration):
            # A coroutine must not raise StopIteration (PEP 479).
            error = RuntimeError(f"the predicate raised {error!r}")
        self._error = error
        return self.force_complete()

    def _read(self) -> tuple[str | None, object, int]:
        signals, key = self.signals, self._key
        last = None if key is None else signals.first_after(key, signals.last(key) - 1)
        return key, None if last is None else signals.value(last), signals._head


def new_park(
    delay_ms: int,
    signals: MemorySignals,
    keys: tuple[str, ...],
    positions: tuple[int, ...] | None,
    wake_ups: WakeUps,
    clock: Clock,
    until: Callable[[], object] | None,
) -> ParkOperation:
    """Return an operation that ends when a key fires or, if `until` is given, when it is true.

    `positions` has one for each of `keys`; None is from now on.
    """
    # Without calling a constructor, which costs the compiled form as much as all of this.
    if until is None:
        operation = ParkOperation.__new__(ParkOperation)
    else:
        if not callable(until):
            raise TypeError(
                f"until is {until!r}: give a function without parameters, such as "
                "lambda: order.is_paid"
            )
        conditional = PredicateParkOperation.__new__(PredicateParkOperation)
        conditional._until = until
        conditional._key = None
        operation = conditional
    operation.delay_ms = delay_ms
    operation.expiration_ms = NOT_SCHEDULED
    operation._array = None
    operation.status = _PENDING
    operation._keys = ()
    operation._purgatory = None
    operation.signals = signals
    operation.watched_keys = keys
    operation.condition = ANY
    operation.is_abandoned = False
    operation.position = signals._head if positions is None else positions[0]
    operation._positions = positions
    operation.outcome = operation._error = None
    operation._callback = operation._task_context = operation._parked_in = None
    operation._asyncio_future_blocking = False
    operation._loop = wake_ups.loop
    operation._wake_ups = wake_ups
    operation._clock = clock
    if compiled and type(clock) is SystemClock:
        operation._started_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
    else:
        operation._started_ns = clock.now_ns()
    return operation
