"""An operation that waits for signals."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.operation import DelayedOperation
from purgatory.signals import Signals


class WatchOperation(DelayedOperation):
    """Completes once enough of its keys have enough signals that came after given positions.

    Any, all and k of n keys are `needed_keys` of 1, n and k. Subclasses say what to do then.
    """

    __slots__ = ("min_signals", "needed_keys", "positions", "signals")

    def __init__(
        self,
        delay_ms: int,
        signals: Signals,
        positions: Mapping[str, int],
        *,
        needed_keys: int = 1,
        min_signals: int = 1,
    ) -> None:
        """Wait for `min_signals` after its position on each of `needed_keys` of the keys."""
        super().__init__(delay_ms)
        self.signals = signals
        self.positions = positions
        self.needed_keys = needed_keys
        self.min_signals = min_signals

    def try_complete(self) -> bool:
        """Complete if the signals are there."""
        needed = self.needed_keys
        has_after = self.signals.has_after
        for key, position in self.positions.items():
            if has_after(key, position, self.min_signals):
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
