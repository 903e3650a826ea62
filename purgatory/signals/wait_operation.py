"""Waits for signals: keys, positions, a condition and a deadline; and those that tasks await."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome, Status
from purgatory.signals.memory import MemorySignals, Signal
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock

# On the hot path, an enumeration's attribute costs more than a global name.
_CANCELLED = Status.CANCELLED
_DRAINED = Status.DRAINED
_FIRED = Status.FIRED
_OUTDATED = Status.OUTDATED
_PENDING = Status.PENDING
_NOT_BY_TASK: Final = object()
# What the constructor of a named tuple calls, without a call of Python in between.
_new_tuple = tuple.__new__


# Not a dataclass: the compiler makes a C structure of this.
class Condition:
    """The number of signals that a key needs, and the number of keys that need them. Immutable.

    Waits with the same numbers can share one object. `needed_keys` is 1 for any key, and the number
    of keys of the wait for all of them.
    """

    __slots__ = ("min_signals", "needed_keys")

    min_signals: int
    needed_keys: int

    def __init__(self, min_signals: int = 1, needed_keys: int = 1) -> None:
        """Require `min_signals` signals on each of `needed_keys` keys; both are at least 1."""
        self.min_signals = min_signals
        self.needed_keys = needed_keys


ANY: Final = Condition()
"""One signal on any key."""


class WaitOperation(DelayedOperation):
    """Fires once its keys have the signals of its condition; expires at its deadline.

    It ends as outdated instead if signals after its positions were lost or are no longer kept.

    The base of all waits for signals. A subclass is the responder: it defines `on_complete`, which
    sends the result to the caller (a task that awaits it, a request, a connection) and is called
    exactly once, with `status` set, however the wait ended. No second object is needed for a wait.

    Give it to `Purgatory.park_operation` with its `watched_keys`. Call `abandon` when the caller
    has gone.
    A subclass with a condition of its own overrides `try_complete`.
    """

    __slots__ = ("_positions", "condition", "is_abandoned", "position", "signals", "watched_keys")

    signals: MemorySignals
    watched_keys: tuple[str, ...]
    """The keys, each once, also after the wait has ended."""
    condition: Condition
    position: int
    """Signals after this position count: on every key or, if positions differ, on the first."""
    is_abandoned: bool
    """True iff the caller has left: there is no client to respond to."""
    # One for each key, if they differ.
    _positions: tuple[int, ...] | None

    def __init__(
        self,
        delay_ms: int,
        signals: MemorySignals,
        keys: tuple[str, ...],
        positions: int | tuple[int, ...],
        condition: Condition = ANY,
    ) -> None:
        """Wait for signals after `positions`: one for all keys, or one for each."""
        DelayedOperation.__init__(self, delay_ms)
        # One of several logs, if it has all of the keys: positions of two cannot be compared.
        self.signals = signals.part(keys) if signals.is_shared else signals
        self.watched_keys = keys
        self.condition = condition
        self.is_abandoned = False
        self._positions = None
        if not isinstance(positions, tuple):
            self.position = positions
        else:
            self.position = positions[0]
            if len(positions) > 1:
                self._positions = positions

    @property
    def positions(self) -> tuple[int, ...]:
        """The position for each key."""
        positions = self._positions
        return (self.position,) * len(self.watched_keys) if positions is None else positions

    def try_complete(self) -> bool:
        """Complete if enough keys have enough signals after their positions."""
        signals, keys = self.signals, self.watched_keys
        position, positions = self.position, self._positions
        # Usually no key fired since: an operation is tried before it is watched.
        if positions is None and signals._head == position:
            return False
        condition = self.condition
        needed = condition.needed_keys
        for index in range(len(keys)):
            if positions is not None:
                position = positions[index]
            if signals.has_after(keys[index], position, condition.min_signals):
                needed -= 1
                if needed <= 0:
                    return self.force_complete()
        return False

    def on_complete(self) -> None:
        """Respond to the caller, unless the wait `is_abandoned`: called once, however it ended."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_complete()")

    def on_cancellation(self) -> None:
        """Respond as for any other end: cancelled, drained or abandoned."""
        self.on_complete()

    def abandon(self) -> bool:
        """End the wait because its caller has left; True iff it was pending. Idempotent."""
        self.is_abandoned = True
        return self._cancel(_CANCELLED)

    def _settle(self, status: Status) -> bool:
        # First of all: whatever counts or records the outcome reads it once it is settled. And the
        # usual case first, which looks up no globals.
        if self._is_outdated(status) and status is not _CANCELLED:
            status = _OUTDATED
        return DelayedOperation._settle(self, status)

    def _is_outdated(self, status: Status) -> bool:
        """Return True iff signals are missing without which `status` cannot be known."""
        signals, keys = self.signals, self.watched_keys
        position, positions = self.position, self._positions
        for index in range(len(keys)):
            if positions is not None:
                position = positions[index]
            if position < signals.earliest(keys[index]):
                # A drain says nothing about the keys: the next wait at these positions is outdated.
                return status is not _DRAINED
        return False


class ParkOperation(WaitOperation):
    """A wait that is its own awaitable: no future, handle or closure for each call.

    It has the part of a future that `asyncio.Task` uses: `_asyncio_future_blocking`, `_loop`,
    `add_done_callback`, `cancel(msg)` and `result`. One task awaits it, once.

    With a predicate it ends when that is true, and is tried again whenever a key fires.

    Created by `Parking.park`. Do not subclass it: the compiled form calls its methods statically.
    """

    kind = "park"

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_error",
        "_key",
        "_next",
        "_started_ns",
        "_task_context",
        "_until",
        "_wake_ups",
        "outcome",
    )

    outcome: Outcome
    """The result; None while it is pending, and if the call failed."""
    # The exception to raise in the task.
    _error: BaseException | None
    _until: Callable[[], object] | None
    # The key whose check found that the predicate holds.
    _key: str | None
    # Resumes the task in its context, while it waits.
    _callback: Callable[[Any], object] | None
    _task_context: Context | None
    _asyncio_future_blocking: bool
    _wake_ups: WakeUps
    # The next one to be resumed in the same turn of the event loop.
    _next: ParkOperation | None
    _started_ns: int

    @property
    def _loop(self) -> AbstractEventLoop:
        return self._wake_ups.loop

    def __await__(self) -> Generator[Any, None, None]:
        """Suspend the task until the operation has ended; raise its error."""
        if self.status is not _PENDING:
            self.result()
        elif self._callback is not None:
            raise RuntimeError(f"{self!r} is awaited by another task already")
        if compiled:
            return self  # type: ignore[return-value] # an iterator is all that is needed
        # Yields itself, once. A generator would do the same, and `__next__` in Python, but slower.
        self._asyncio_future_blocking = self.status is _PENDING
        return iter((self,) if self.status is _PENDING else ())  # type: ignore[return-value] # as above

    def __next__(self) -> ParkOperation:
        """Yield the operation to the task, as a future does, while it is pending; compiled."""
        if self.status is not _PENDING:
            raise StopIteration
        self._asyncio_future_blocking = True
        return self

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Resume the task by `callback` in `context`; called by the task when it suspends.

        A predicate runs in a copy of `context` from now on.
        """
        self._callback = callback
        self._task_context = context
        if self._until is not None:
            self._parked_in = context

    def result(self) -> Outcome:
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
        if msg is not _NOT_BY_TASK and self.status is _PENDING:
            self._error = CancelledError() if msg is None else CancelledError(msg)
        return self._cancel(_CANCELLED)

    def try_complete(self) -> bool:
        """Complete if a key has fired or, with a predicate, if that holds.

        What the predicate raises is raised in the caller immediately, not at the deadline.
        """
        until = self._until
        if until is None:
            return WaitOperation.try_complete(self)
        try:
            is_true = until()
            if is_true is not True and isinstance(is_true, Coroutine):
                is_true.close()
                raise TypeError(
                    "until is an async function, which would always be true: give a plain one that "
                    "reads memory; for a database, await it and park(...) in a loop, with the "
                    "cursor of each outcome"
                )
        except Exception as exc:
            if self.status is not _PENDING:
                return False
            self._error = exc
            if isinstance(exc, StopIteration):
                # A coroutine must not raise StopIteration (PEP 479).
                self._error = RuntimeError(f"the predicate raised {exc!r}")
            return self.force_complete()
        if not is_true:
            return False
        purgatory = self._purgatory
        if purgatory is not None:
            checked: Any = purgatory.current_key
            # Another operation's key is current if its callback tries this operation.
            self._key = checked if checked in self.watched_keys else None
        return self.force_complete()

    def on_complete(self) -> None:
        """Set the outcome, and resume the task if it is suspended."""
        if self.status is _OUTDATED:
            self._error = self.signals.loss(self.watched_keys, self.positions)
        elif self._error is None and not self.is_abandoned:
            self._set_outcome()
        if self._callback is not None:
            self._wake_ups.add(self)

    def _try(self) -> bool:
        return self.try_complete()

    def _complete(self) -> None:
        self.on_complete()

    def _is_outdated(self, status: Status) -> bool:
        # In memory, a signal that is no longer kept has fired all the same.
        signals = self.signals
        return (
            signals.is_shared
            and self._until is None
            and signals.loss(self.watched_keys, self.positions) is not None
        )

    def _listener_context(self) -> Context | None:
        # With a predicate it ends in the context of that, which is the task's.
        return self._task_context if self._until is None else None

    def _set_outcome(self) -> None:
        signals, keys = self.signals, self.watched_keys
        key, value, position = None, None, signals._head
        if self._until is not None:
            key = self._key
            last = None if key is None else signals.first_after(key, signals.last(key) - 1)
            if last is not None:
                value = signals.value(last)
        else:
            first = self._first_signal()
            if self.status is not _FIRED:
                # A signal that was appended but not tried yet is for the next wait.
                if first is not None:
                    position = first.offset - 1
            elif first is not None:
                # A cursor just after it: the next wait returns the other signals.
                key, value, position = first.key, signals.value(first), first.offset
            else:
                # The signal was trimmed, or the operation was completed by `force_complete`.
                key = self._trimmed_key()
        if signals.is_shared:
            cursor = signals.cursor_after(keys, self.positions, key, position)
        else:
            cursor = signals.cursor(position)
        wake_ups = self._wake_ups
        if compiled and wake_ups.is_system:
            now_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            now_ns = wake_ups.clock.now_ns()
        waited_ms = (now_ns - self._started_ns) // NS_PER_MS
        fields = (self.status, key, value, cursor, waited_ms)
        if compiled:
            self.outcome = new_tuple(Outcome, fields)  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            self.outcome = _new_tuple(Outcome, fields)

    def _first_signal(self) -> Signal | None:
        """Return the oldest retained signal of any key after its position."""
        signals, keys = self.signals, self.watched_keys
        position, positions = self.position, self._positions
        first: Signal | None = None
        for index in range(len(keys)):
            if positions is not None:
                position = positions[index]
            signal = signals.first_after(keys[index], position)
            if signal is not None and (first is None or signal.offset < first.offset):
                first = signal
        return first

    def _trimmed_key(self) -> str | None:
        """Return the first key that has fired, even if its signal was trimmed."""
        for key, position in zip(self.watched_keys, self.positions, strict=True):
            if self.signals.has_after(key, position, 1):
                return key
        return None


class WakeUps:
    """Resumes tasks in the next turn of the event loop, in the order in which they were added.

    One handle resumes all of them: a handle for each, as futures have, takes as long as all the
    rest of a fire. So a task may be resumed before a callback that was scheduled before it was
    added, if another task was added before that callback.
    """

    __slots__ = ("_done", "_first", "_last", "clock", "is_system", "loop")

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        """Resume tasks of `loop`; `clock` is that of their operations."""
        self.loop: AbstractEventLoop = loop
        self.clock: Clock = clock
        # The compiled form reads the system's clock without a call of Python.
        self.is_system: bool = type(clock) is SystemClock
        # What a task asks for a result that it does not use: for a future of asyncio's own that
        # takes no call of Python, and for an operation as long as all else of its end.
        self._done: Future[None] = loop.create_future()
        self._done.set_result(None)
        # The operations that ended in this turn are linked by `_next`.
        self._first: ParkOperation | None = None
        self._last: ParkOperation | None = None

    def add(self, operation: ParkOperation) -> None:
        """Resume the task of `operation` in the next turn of the event loop.

        Raises RuntimeError if the loop is closed.
        """
        last = self._last
        if last is None:
            # In the context of the first task: no second context switch.
            self.loop.call_soon(self._run, context=operation._task_context)
            self._first = operation
        else:
            last._next = operation
        self._last = operation

    def _run(self) -> None:
        following = self._first
        self._first = self._last = None
        assert following is not None
        entered = following._task_context
        try:
            while following is not None:
                operation, following = following, following._next
                callback: Any = operation._callback
                context: Any = operation._task_context
                # Released, because they form a cycle with the task.
                operation._callback = operation._task_context = operation._next = None
                future = self._done if operation._error is None else operation
                if context is entered:
                    callback(future)
                elif compiled:
                    context_enter(context)  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
                    try:
                        callback(future)
                    finally:
                        context_exit(context)  # type: ignore[name-defined] # noqa: F821 - as above
                else:
                    context.run(callback, future)
        except BaseException:
            # An interrupt, as a task raises no other error: the others are still resumed.
            while following is not None:
                operation, following = following, following._next
                operation._next = None
                self.add(operation)
            raise
        finally:
            # An error of the task may refer to this frame, and must not keep the task.
            del operation, future, callback, context
