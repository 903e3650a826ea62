"""The operation behind `Purgatory.park`."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from purgatory.operation import DelayedOperation
from purgatory.outcome import Outcome
from purgatory.signals.memory import MemorySignals
from purgatory.signals.signal import Signal
from purgatory.status import Status
from purgatory.timer.clock import NS_PER_MS, Clock

# As a named tuple's own constructor does it, without a call of Python in between.
_new_tuple = tuple.__new__
_FIRED = Status.FIRED


class ParkOperation(DelayedOperation):
    """Completes a future with an Outcome: no task, no handle and no closure for each call."""

    kind = "park"

    __slots__ = (
        "_clock",
        "_key",
        "_seen",
        "_started_ns",
        "_until",
        "future",
        "positions",
        "signals",
    )

    def __init__(
        self,
        delay_ms: int,
        signals: MemorySignals,
        positions: Mapping[str, int],
        future: Future[Outcome],
        clock: Clock,
        until: Callable[[], object] | None,
    ) -> None:
        """Complete `future` when a key fires or, where it is given, when `until()` is true."""
        DelayedOperation.__init__(self, delay_ms)
        self.signals = signals
        self.positions = positions
        self.future = future
        self._clock = clock
        self._until = until
        self._key: str | None = None
        # The head of all signals at the last try: while it stays, there is nothing new to see.
        self._seen = -1
        self._started_ns = clock.now_ns()

    def try_complete(self) -> bool:
        """Complete if a key fired, or if the predicate holds; its failure fails the caller."""
        if self._until is None:
            return self._try_signals()
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
            self._key = checked if checked in self.positions else None
        return self.force_complete()

    def _try_signals(self) -> bool:
        signals = self.signals
        head = signals.head()
        if head == self._seen:
            return False
        self._seen = head
        return self._fired_key() is not None and self.force_complete()

    def _fired_key(self) -> str | None:
        """Return the first key that fired, whether or not its signal is still kept."""
        signals = self.signals
        for key, position in self.positions.items():
            if signals.has_after(key, position, 1):
                return key
        return None

    def on_complete(self) -> None:
        """Answer the caller: fired or expired."""
        self._answer()

    def on_cancellation(self) -> None:
        """Answer the caller: cancelled or drained."""
        self._answer()

    def _answer(self) -> None:
        # Whoever awaits may have been cancelled in this same turn of the loop.
        future = self.future
        if not future.done():
            future.set_result(self._outcome())

    def _fail(self, error: Exception) -> bool:
        if not self._settle(Status.FIRED):
            return False
        if isinstance(error, StopIteration):
            # A future refuses it, as a coroutine turns it into this (PEP 479).
            error = RuntimeError(f"the predicate raised {error!r}")
        if not self.future.done():
            self.future.set_exception(error)
        return True

    def _outcome(self) -> Outcome:
        signals = self.signals
        key, value, position = self._key, None, signals.head()
        if key is not None:
            last = signals.read(key, signals.last(key) - 1, 1)
            if last:
                only = last[0]
                value = only.value
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
        waited_ms = (self._clock.now_ns() - self._started_ns) // NS_PER_MS
        fields = (self.status, key, value, signals.cursor(position), waited_ms)
        return _new_tuple(Outcome, fields)

    def _first_unread(self) -> Signal | None:
        signals = self.signals
        first: Signal | None = None
        for key, position in self.positions.items():
            unread = signals.read(key, position, 1)
            if unread:
                signal = unread[0]
                if first is None or signal.offset < first.offset:
                    first = signal
        return first
