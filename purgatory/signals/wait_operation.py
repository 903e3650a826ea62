"""A wait for signals: keys, positions, a condition and a deadline."""

from __future__ import annotations

from typing import Final

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Status
from purgatory.signals.memory import MemorySignals

# On the hot path, an enumeration's attribute costs more than a global name.
_CANCELLED = Status.CANCELLED
_DRAINED = Status.DRAINED
_OUTDATED = Status.OUTDATED


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
