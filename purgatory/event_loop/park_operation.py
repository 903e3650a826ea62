"""The operation behind `Purgatory.park`."""

from __future__ import annotations

from asyncio import Future, InvalidStateError
from collections.abc import Callable, Coroutine
from typing import Any

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome
from purgatory.signals.memory import MemorySignals
from purgatory.signals.signal import Signal
from purgatory.status import Status
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock
from purgatory.timer.task import NOT_SCHEDULED

# As a named tuple's own constructor does it, without a call of Python in between.
_new_tuple = tuple.__new__
_FIRED = Status.FIRED
_PENDING = Status.PENDING


class ParkOperation(DelayedOperation):
    """Completes a future with an Outcome: no task, no handle and no closure for each call.

    Made by `new_park`. No subclasses: the compiled form calls its methods without looking for them.
    """

    kind = "park"

    __slots__ = (
        "_clock",
        "_key",
        "_position",
        "_positions",
        "_seen",
        "_signal",
        "_signals",
        "_started_ns",
        "_until",
        "_watched",
        "future",
    )

    future: Future[Outcome]
    _clock: Clock
    _until: Callable[[], object] | None
    # The key that was checked when the predicate held.
    _key: str | None
    _signals: MemorySignals
    # The keys, also when they are watched no more.
    _watched: tuple[str, ...]
    # From where it waits on every key, or on each.
    _position: int
    _positions: dict[str, int] | None
    # The head of all signals at the last try: while it stays, there is nothing new to see.
    _seen: int
    # The signal that completed it, if it was one.
    _signal: Signal | None
    _started_ns: int

    def try_complete(self) -> bool:
        """Complete if a key fired, or if the predicate holds; its failure fails the caller."""
        return self._try()

    def _try(self) -> bool:
        if self._until is not None:
            return self._try_predicate()
        head = self._signals._head
        if head == self._seen:
            return False
        self._seen = head
        signal = self._signal = self._first_unread()
        return (signal is not None or self._fired_key() is not None) and self.force_complete()

    def _try_predicate(self) -> bool:
        assert self._until is not None
        try:
            is_true = self._until()
        except Exception as exc:
            # The caller asked, so the caller is told, at once rather than at the deadline.
            return self._fail(exc)
        if is_true is not True and isinstance(is_true, Coroutine):
            is_true.close()
            return self._fail(TypeError("until is an async function, which would always hold"))
        if not is_true:
            return False
        purgatory = self._purgatory
        if purgatory is not None:
            checked: Any = purgatory.checked_key
            # A key of somebody else is checked where its callback looks at this operation.
            self._key = checked if checked in self._watched else None
        return self.force_complete()

    def _fired_key(self) -> str | None:
        """Return the first key that fired, whether or not its signal is still kept."""
        position, positions = self._position, self._positions
        for key in self._watched:
            if positions is not None:
                position = positions[key]
            if self._signals.has_after(key, position, 1):
                return key
        return None

    def on_complete(self) -> None:
        """Answer the caller: fired or expired."""
        self._answer()

    def on_cancellation(self) -> None:
        """Answer the caller: cancelled or drained."""
        self._answer()

    def _complete(self) -> None:
        self._answer()

    def _answer(self) -> None:
        outcome = self._outcome()
        try:
            self.future.set_result(outcome)
        except InvalidStateError:
            # Whoever awaits was cancelled, in this same turn of the loop.
            return

    def _fail(self, error: Exception) -> bool:
        if not self._settle(_FIRED):
            return False
        if isinstance(error, StopIteration):
            # A future refuses it, as a coroutine turns it into this (PEP 479).
            error = RuntimeError(f"the predicate raised {error!r}")
        if not self.future.done():
            self.future.set_exception(error)
        return True

    def _outcome(self) -> Outcome:
        signals = self._signals
        key, value, position = self._key, None, signals._head
        if key is not None:
            last = signals.first_after(key, signals.last(key) - 1)
            if last is not None:
                value = last.value
        elif self._until is None:
            first = self._signal
            if first is None:
                first = self._first_unread()
            if self.status is not _FIRED:
                # A signal that came before this operation was tried is for the next wait.
                position = position if first is None else first.offset - 1
            elif first is not None:
                # A cursor just behind it: the others come next time.
                key, value, position = first.key, first.value, first.offset
            else:
                # The signal itself has made way, and all that is known is that there was one; or
                # somebody completed the operation by hand.
                key = self._fired_key()
        if compiled and type(self._clock) is SystemClock:
            now_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            now_ns = self._clock.now_ns()
        waited_ms = (now_ns - self._started_ns) // NS_PER_MS
        fields = (self.status, key, value, signals.cursor(position), waited_ms)
        if compiled:
            return new_tuple(Outcome, fields)  # type: ignore[name-defined,no-any-return] # noqa: F821 - as above
        else:
            return _new_tuple(Outcome, fields)

    def _first_unread(self) -> Signal | None:
        """Return the oldest signal of any key that is kept and came after its position."""
        first: Signal | None = None
        position, positions = self._position, self._positions
        for key in self._watched:
            if positions is not None:
                position = positions[key]
            signal = self._signals.first_after(key, position)
            if signal is not None and (first is None or signal.offset < first.offset):
                first = signal
        return first


def new_park(
    delay_ms: int,
    signals: MemorySignals,
    keys: tuple[str, ...],
    positions: dict[str, int] | None,
    future: Future[Outcome],
    clock: Clock,
    until: Callable[[], object] | None,
) -> ParkOperation:
    """Complete `future` when a key fires or, where it is given, when `until()` is true.

    `positions` says from where to wait on each of `keys`; None is from now on.
    """
    # Without the call of a constructor, which costs the compiled form as much as all of this.
    operation = ParkOperation.__new__(ParkOperation)
    operation.delay_ms = delay_ms
    operation.expiration_ms = NOT_SCHEDULED
    operation._array = None
    operation.status = _PENDING
    operation._keys = ()
    operation._purgatory = None
    operation.future = future
    operation._clock = clock
    operation._until = until
    operation._key = None
    operation._signals = signals
    operation._watched = keys
    operation._position = head = signals._head
    operation._positions = positions
    operation._seen = head if positions is None else -1
    operation._signal = None
    if compiled and type(clock) is SystemClock:
        operation._started_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
    else:
        operation._started_ns = clock.now_ns()
    return operation
