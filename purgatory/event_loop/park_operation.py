"""The operation behind `Purgatory.park`."""

from __future__ import annotations

from asyncio import Future, InvalidStateError
from collections.abc import Callable, Coroutine
from typing import Any

from purgatory.outcome import Outcome
from purgatory.signals.condition import ANY
from purgatory.signals.memory import MemorySignals
from purgatory.signals.signal import Signal
from purgatory.signals.wait_operation import WaitOperation
from purgatory.status import Status
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock
from purgatory.timer.task import NOT_SCHEDULED

# As a named tuple's own constructor does it, without a call of Python in between.
_new_tuple = tuple.__new__
_FIRED = Status.FIRED
_PENDING = Status.PENDING


class ParkOperation(WaitOperation):
    """Completes a future with an Outcome: no task, no handle and no closure for each call.

    Made by `new_park`. No subclasses: the compiled form calls its methods without looking for them.
    """

    kind = "park"

    __slots__ = ("_clock", "_key", "_started_ns", "_until", "future")

    future: Future[Outcome]
    _clock: Clock
    _until: Callable[[], object] | None
    # The key that was checked when the predicate held.
    _key: str | None
    _started_ns: int

    def try_complete(self) -> bool:
        """Complete if a key fired, or if the predicate holds; its failure fails the caller."""
        return self._try()

    def _try(self) -> bool:
        if self._until is not None:
            return self._try_predicate()
        return self._is_met() and self.force_complete()

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
            self._key = checked if checked in self.watched_keys else None
        return self.force_complete()

    def on_end(self) -> None:
        """Answer the caller."""
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
        signals = self.signals
        key, value, position = self._key, None, signals._head
        if key is not None:
            last = signals.first_after(key, signals.last(key) - 1)
            if last is not None:
                value = last.value
        elif self._until is None:
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
        keys, position, positions = self.watched_keys, self.position, self._positions
        for index in range(len(keys)):
            if positions is not None:
                position = positions[index]
            signal = self.signals.first_after(keys[index], position)
            if signal is not None and (first is None or signal.offset < first.offset):
                first = signal
        return first

    def _fired_key(self) -> str | None:
        """Return the first key that fired, whether or not its signal is still kept."""
        for key, position in zip(self.watched_keys, self.positions, strict=True):
            if self.signals.has_after(key, position, 1):
                return key
        return None


def new_park(
    delay_ms: int,
    signals: MemorySignals,
    keys: tuple[str, ...],
    positions: tuple[int, ...] | None,
    future: Future[Outcome],
    clock: Clock,
    until: Callable[[], object] | None,
) -> ParkOperation:
    """Complete `future` when a key fires or, where it is given, when `until()` is true.

    `positions` are those for each of `keys`; None is from now on.
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
    operation.signals = signals
    operation.watched_keys = keys
    operation.condition = ANY
    operation.is_abandoned = False
    operation.position = signals._head if positions is None else positions[0]
    operation._positions = positions
    if compiled and type(clock) is SystemClock:
        operation._started_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
    else:
        operation._started_ns = clock.now_ns()
    return operation
