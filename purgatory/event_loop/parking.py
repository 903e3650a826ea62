"""Parking and firing, without the coroutines around them."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import copy_context
from datetime import timedelta
from typing import Final

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
from purgatory.outcome import FireResult, Status
from purgatory.signals.log_replica import ShardedSignals
from purgatory.signals.memory import HistoryTrimmer, MemorySignals
from purgatory.signals.wait_operation import ANY, ParkOperation, WakeUps
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, Seconds
from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED

NS_PER_SECOND: Final = 1e9

# More operations than this on a key are tried in slices, over several turns of the event loop.
MAX_UNSLICED = 32

# On the hot path, an enumeration's attribute costs more than a global name.
_PENDING = Status.PENDING
_get_ident = threading.get_ident
# What the constructor of a named tuple calls, without a call of Python in between.
_new_tuple = tuple.__new__


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
        "none_completed",
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
        # What `Purgatory.check` returns for all keys without an operation that it completes.
        self.none_completed: Future[int]
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
        self.none_completed = loop.create_future()
        self.none_completed.set_result(0)

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
        if compiled and wake_ups.is_system:
            operation._started_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            operation._started_ns = wake_ups.clock.now_ns()
        if not compiled:
            # As a compiled object begins.
            operation._array = operation._purgatory = operation._parked_in = None
            operation._callback = operation._task_context = operation._next = None
            operation._error = operation._key = None
            operation.outcome = None  # type: ignore[assignment] # see its docstring
            operation.is_abandoned = operation._asyncio_future_blocking = False
        return operation

    def park_operation(
        self, operation: DelayedOperation, keys: tuple[Hashable, ...], is_bounded: bool
    ) -> bool:
        """Implement `Purgatory.park_operation`."""
        self.require_open()
        self.check_count(len(keys))
        for key in keys:
            # Only a string can be fired.
            if isinstance(key, str):
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

    def check(self, key: Hashable) -> int:
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

    def check_limits(self, keys: tuple[Hashable, ...]) -> None:
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
