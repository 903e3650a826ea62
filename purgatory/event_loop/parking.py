"""Parking and firing, without the coroutines around them."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context, copy_context
from datetime import timedelta
from typing import Any, Final

from purgatory.errors import (
    InvalidTimeoutError,
    LimitReachedError,
    PurgatoryClosedError,
    PurgatoryDrainingError,
    WrongThreadError,
)
from purgatory.limits import Limits
from purgatory.operations.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.operations.watch_key import check_key
from purgatory.outcome import FireResult, Outcome, Status
from purgatory.signals.log_replica import ShardedSignals
from purgatory.signals.memory import HistoryTrimmer, MemorySignals, Signal
from purgatory.signals.wait_operation import ANY, WaitOperation
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, Seconds, SystemClock
from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED

NS_PER_SECOND: Final = 1e9

# More operations than this on a key are tried in slices, over several turns of the event loop.
MAX_UNSLICED = 32

# On the hot path, an enumeration's attribute costs more than a global name.
_CANCELLED = Status.CANCELLED
_FIRED = Status.FIRED
_OUTDATED = Status.OUTDATED
_PENDING = Status.PENDING
_NOT_BY_TASK: Final = object()
_get_ident = threading.get_ident
# What the constructor of a named tuple calls, without a call of Python in between.
_new_tuple = tuple.__new__


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
        # A generator would do the same, but slower.
        return self  # type: ignore[return-value] # an iterator is all that is needed

    def __next__(self) -> ParkOperation:
        """Yield the operation to the task, as a future does, while it is pending."""
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
        return self._try()

    def on_complete(self) -> None:
        """Set the outcome, and resume the task if it is suspended."""
        if self.status is _OUTDATED:
            self._error = self.signals.loss(self.watched_keys, self.positions)
        elif self._error is None and not self.is_abandoned:
            self._set_outcome()
        if self._callback is not None:
            self._wake_ups.add(self)

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

    def _try(self) -> bool:
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
        waited_ms = (self._wake_ups.now_ns() - self._started_ns) // NS_PER_MS
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

    __slots__ = ("_clock", "_done", "_first", "_is_system", "_last", "loop")

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        """Resume tasks of `loop`; `clock` is that of their operations."""
        self.loop: AbstractEventLoop = loop
        self._clock: Clock = clock
        # The compiled form reads the system's clock without a call of Python.
        self._is_system: bool = type(clock) is SystemClock
        # What a task asks for a result that it does not use: for a future of asyncio's own that
        # takes no call of Python, and for an operation as long as all else of its end.
        self._done: Future[None] = loop.create_future()
        self._done.set_result(None)
        # The operations that ended in this turn are linked by `_next`.
        self._first: ParkOperation | None = None
        self._last: ParkOperation | None = None

    def now_ns(self) -> int:
        """Return the time of the clock."""
        if compiled and self._is_system:
            return system_now_ns()  # type: ignore[name-defined,no-any-return] # noqa: F821 - it is in the .pxd
        return self._clock.now_ns()

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


class Parking:
    """The hot path of `Purgatory`: what happens for each park and fire.

    A class of its own, because compiling makes this faster, but not a coroutine.
    """

    __slots__ = (
        "_clock",
        "_max_keys",
        "_max_parked",
        "_max_parked_bytes",
        "_max_parked_per_key",
        "_max_timeout",
        "_name",
        "_operations",
        "_shards",
        "_signals",
        "_trim",
        "_wake_ups",
        "is_draining",
        "loop",
        "opened",
        "refused",
        "thread_id",
    )

    def __init__(
        self,
        name: str,
        limits: Limits,
        clock: Clock,
        signals: MemorySignals,
        operations: DelayedOperationPurgatory,
        trim: HistoryTrimmer,
    ) -> None:
        """Prepare to park on `operations`, and to fire into `signals`."""
        self._name: str = name
        self._clock: Clock = clock
        self._signals: MemorySignals = signals
        # The same, if they are in several logs.
        self._shards: ShardedSignals | None = (
            signals if isinstance(signals, ShardedSignals) else None
        )
        self._operations: DelayedOperationPurgatory = operations
        self._trim: HistoryTrimmer = trim
        self._max_keys: int = limits.max_keys_per_operation
        self._max_parked: int = limits.max_parked
        self._max_parked_bytes: int = limits.max_parked_bytes
        self._max_parked_per_key: int = limits.max_parked_per_key
        self._max_timeout: float = min(limits.max_timeout, MAX_DELAY_MS / 1000)
        self._wake_ups: WakeUps
        self.loop: AbstractEventLoop | None = None
        self.thread_id: int = 0
        # How often it was opened and not closed again.
        self.opened: int = 0
        self.is_draining: bool = False
        # {bound: how often it was reached}
        self.refused: dict[str, int] = {}

    def begin(self, loop: AbstractEventLoop) -> None:
        """Belong to `loop` and to this thread, until `end`."""
        self.loop = loop
        self.thread_id = _get_ident()
        self._wake_ups = WakeUps(loop, self._clock)

    def end(self) -> None:
        """Belong to no loop: the next `begin` may be on another one."""
        self.loop = None
        self.opened = 0
        self.is_draining = False

    def park(
        self,
        keys: tuple[str, ...],
        timeout: Seconds,
        until: Callable[[], object] | None,
        cursor: str | Mapping[str, str | None] | None,
    ) -> ParkOperation:
        """Return the operation that `Purgatory.park` awaits."""
        self.require_open()
        delay_ms = self.delay_ms(timeout)
        positions = None
        if cursor is not None:
            found = self.positions(keys, cursor)
            keys, positions = tuple(found), tuple(found.values())
        elif len(keys) == 1:
            check_key(keys[0])
        else:
            keys = tuple(self.positions(keys, None))
        signals = self._signals
        if self._shards is not None:
            signals = self._shards.part(keys)
            if positions is None and len(keys) > 1:
                positions = tuple(self.positions(keys, None).values())
        operation = self._new_park(delay_ms, signals, keys, positions, until)
        if self.is_draining:
            operation._cancel(Status.DRAINED)
        elif delay_ms == 0:
            # Tried only, without parking.
            if not operation.try_complete():
                operation.run()
        else:
            self.check_limits(keys)
            self._operations.try_complete_else_watch(operation, keys)
        return operation

    def _new_park(
        self,
        delay_ms: int,
        signals: MemorySignals,
        keys: tuple[str, ...],
        positions: tuple[int, ...] | None,
        until: Callable[[], object] | None,
    ) -> ParkOperation:
        """Return an operation on `keys`, with a position for each; None is from now on."""
        if until is not None and not callable(until):
            raise TypeError(
                f"until is {until!r}: give a function without parameters, such as "
                "lambda: order.is_paid"
            )
        wake_ups = self._wake_ups
        # Without calling a constructor, which costs the compiled form as much as all of this.
        operation = ParkOperation.__new__(ParkOperation)
        operation.delay_ms = delay_ms
        operation.expiration_ms = NOT_SCHEDULED
        operation.status = _PENDING
        operation._keys = ()
        operation.signals = signals
        operation.watched_keys = keys
        operation.condition = ANY
        operation.position = signals._head if positions is None else positions[0]
        operation._positions = positions
        operation._until = until
        operation._wake_ups = wake_ups
        operation._started_ns = wake_ups.now_ns()
        if not compiled:
            # As a compiled object begins.
            operation._array = operation._purgatory = operation._parked_in = None
            operation._callback = operation._task_context = operation._next = None
            operation._error = operation._key = None
            operation.outcome = None  # type: ignore[assignment] # see its docstring
            operation.is_abandoned = operation._asyncio_future_blocking = False
        return operation

    def park_operation(
        self, operation: DelayedOperation, keys: tuple[str, ...], is_bounded: bool
    ) -> bool:
        """Implement `Purgatory.park_operation`."""
        self.require_open()
        self.check_count(len(keys))
        for key in keys:
            check_key(key)
        if self.is_draining:
            raise PurgatoryDrainingError(f"purgatory {self._name!r} is draining and parks nothing")
        if is_bounded:
            self.check_limits(keys)
        if self._operations.try_complete_else_watch(operation, keys):
            return True
        if operation.status is _PENDING and operation._parked_in is None:
            if compiled:
                operation._parked_in = copy_current()  # type: ignore[name-defined] # noqa: F821 - in c_context.pxd
            else:
                operation._parked_in = copy_context()
        return False

    def fire(self, key: str, value: object, owner: str | None = None) -> FireResult:
        """Append a signal to `key`, and try the operations on it unless there are very many.

        Then `completed` is UNTRIED, and the caller tries them in slices.
        """
        self.require_open()
        check_key(key)
        signals = self._signals
        signal = signals.append(key, value, owner)
        trim = self._trim
        if trim._array is None:
            trim.wake()
        completed = self._operations.check_up_to(key, MAX_UNSLICED)
        fields = (signals.cursor(signal.offset), signal.seq, completed, 0, False)
        if compiled:
            return new_tuple(FireResult, fields)  # type: ignore[name-defined,no-any-return] # noqa: F821 - it is in the .pxd
        else:
            return _new_tuple(FireResult, fields)

    def check(self, key: str) -> int:
        """Try the operations on `key`; UNTRIED if there are very many, as in `fire`."""
        return self._operations.check_up_to(key, MAX_UNSLICED)

    def require_open(self) -> AbstractEventLoop:
        """Return the event loop; raise PurgatoryClosedError or WrongThreadError."""
        loop = self.loop
        if loop is None or not self.opened:
            raise PurgatoryClosedError(
                f"purgatory {self._name!r} is not open: use it inside `async with`, also in a "
                "lifespan of your own, or install it in the application that serves it. If it is "
                "installed, the lifespan of that application did not run: use TestClient(app) as "
                "`with TestClient(app) as client:`, and install in the outermost application, as "
                "mounted ones get no lifespan"
            )
        if compiled:
            is_here = thread_ident() == self.thread_id  # type: ignore[name-defined] # noqa: F821 - as above
        else:
            is_here = _get_ident() == self.thread_id
        if not is_here:
            raise WrongThreadError(
                f"purgatory {self._name!r} was used from {threading.current_thread().name!r}, not "
                "the thread of its event loop: there, call "
                "purgatory.run_threadsafe(purgatory.fire(key)).result(), for example"
            )
        return loop

    def delay_ms(self, timeout: Seconds) -> int:
        """Return `timeout` seconds as whole milliseconds, rounded up; raise InvalidTimeoutError."""
        if type(timeout) is not float and type(timeout) is not int:
            if not isinstance(timeout, timedelta):
                raise TypeError(f"timeout is {timeout!r}: give seconds as a number, such as 2.5")
            timeout = timeout.total_seconds()
        # Written so that NaN, which compares as false, raises.
        if not 0 <= timeout <= self._max_timeout:
            raise InvalidTimeoutError(
                f"timeout is {timeout!r}: give a number of seconds from 0 to "
                f"{self._max_timeout:.15g}"
            )
        if type(timeout) is int:
            return timeout * 1000
        seconds = timeout
        # Through whole nanoseconds: 0.07 * 1000 is slightly more than 70.
        whole_ns = int(seconds * NS_PER_SECOND + 0.5)
        return -(-whole_ns // NS_PER_MS)

    def positions(
        self, keys: Iterable[str], cursor: str | Mapping[str, str | None] | None
    ) -> dict[str, int]:
        """Return the position after which to wait on each key; raise for invalid arguments."""
        signals = self._signals
        keys = tuple(keys)
        for key in keys:
            check_key(key)
        if self._shards is None:
            positions = dict.fromkeys(keys, signals.head())
        else:
            positions = {key: self._shards.head_of(key) for key in keys}
        self.check_count(len(positions))
        if cursor is not None and not isinstance(cursor, (str, Mapping)):
            raise TypeError(f"cursor is {cursor!r}: give a string, or a mapping of keys to strings")
        if cursor is None:
            return positions
        for key in positions:
            own = cursor.get(key) if isinstance(cursor, Mapping) else cursor
            if own is not None:
                positions[key] = signals.position(key, own)
        return positions

    def check_limits(self, keys: tuple[str, ...]) -> None:
        """Raise LimitReachedError if no more operations may wait on `keys`."""
        operations = self._operations
        if operations._delayed >= self._max_parked:
            self.count_refusal("max_parked")
            raise LimitReachedError(
                f"{self._max_parked} {_wait(self._max_parked)} already, the limit: try again "
                "later, or raise it by Limits(max_parked=...)",
                limit="max_parked",
                maximum=self._max_parked,
            )
        if len(keys) > 1 and operations._bytes >= self._max_parked_bytes:
            self.count_refusal("max_parked_bytes")
            raise LimitReachedError(
                f"operations on several keys take {operations._bytes} bytes, the limit is "
                f"{self._max_parked_bytes}: try again later, wait for one key, or raise it by "
                "Limits(max_parked_bytes=...)",
                limit="max_parked_bytes",
                maximum=self._max_parked_bytes,
            )
        if operations._delayed < self._max_parked_per_key:
            # Then no key has that many, either.
            return
        for key in keys:
            if operations.count(key) >= self._max_parked_per_key:
                self.count_refusal("max_parked_per_key")
                raise LimitReachedError(
                    f"{self._max_parked_per_key} {_wait(self._max_parked_per_key)} on key {key!r} "
                    "already, the limit: try again later, or raise it by "
                    "Limits(max_parked_per_key=...)",
                    limit="max_parked_per_key",
                    maximum=self._max_parked_per_key,
                )

    def count_refusal(self, limit: str) -> None:
        """Count in `refused` that a limit was reached."""
        self.refused[limit] = self.refused.get(limit, 0) + 1

    def check_count(self, keys: int) -> None:
        """Raise ValueError unless an operation may watch so many keys."""
        if not 0 < keys <= self._max_keys:
            raise ValueError(
                f"{keys} keys: an operation watches 1 to {self._max_keys}, the limit "
                "max_keys_per_operation: "
                f"{'give fewer, or raise it by Limits(...)' if keys else 'give at least one'}"
            )


def _wait(operations: int) -> str:
    return "operation waits" if operations == 1 else "operations wait"
