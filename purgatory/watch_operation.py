"""An operation that waits for signals."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.operation import DelayedOperation
from purgatory.signals.memory import MemorySignals


class WatchOperation(DelayedOperation):
    """Completes once enough of its keys have enough signals that came after given positions.

    Any, all and k of n keys are `needed_keys` of 1, n and k. Subclasses say what to do then.
    """

    __slots__ = ("_seen", "min_signals", "needed_keys", "positions", "signals")

    def __init__(
        self,
        delay_ms: int,
        signals: MemorySignals,
        positions: Mapping[str, int],
        *,
        needed_keys: int = 1,
        min_signals: int = 1,
    ) -> None:
        """Wait for `min_signals` after its position on each of `needed_keys` of the keys."""
        DelayedOperation.__init__(self, delay_ms)
        self.signals = signals
        self.positions = positions
        self.needed_keys = needed_keys
        self.min_signals = min_signals
        # The head of all signals at the last try: while it stays, there is nothing new to see.
        self._seen = -1

    def try_complete(self) -> bool:
        """Complete if the signals are there."""
        signals = self.signals
        head = signals.head()
        if head == self._seen:
            return False
        self._seen = head
        needed = self.needed_keys
        for key, position in self.positions.items():
            if signals.has_after(key, position, self.min_signals):
                needed -= 1
                if needed <= 0:
                    return self.force_complete()
        return False

    def fired_keys(self) -> list[str]:
        """Return the keys that have enough signals by now."""
        return [
            key
            for key, position in self.positions.items()
            if self.signals.has_after(key, position, self.min_signals)
        ]
