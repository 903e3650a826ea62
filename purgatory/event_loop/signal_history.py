"""The history of signals, as delayed jobs read it."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.signals.memory import MemorySignals
from purgatory.signals.shared_signals import SharedSignals
from purgatory.signals.signal import Signal


class SignalHistory:
    """What fired since a position: in this process, or in all that share signals."""

    def __init__(self, signals: MemorySignals, shared: SharedSignals | None) -> None:
        """Read `signals`, which are a copy of `shared`, if there are any."""
        self._signals = signals
        self._shared = shared

    def position(self, key: str, cursor: str) -> int:
        """Return the position of a cursor; raise BadCursorError or CursorExpiredError."""
        return self._signals.position(key, cursor)

    async def read_to_end(self, keys: Iterable[str]) -> None:
        """Return once every signal of `keys` that fired before the call is here.

        Raises SignalsUnavailableError.
        """
        if self._shared is not None:
            await self._shared.read_to_end(tuple(keys))

    def fired_since(self, since: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
        """Return the keys that fired after their positions, with the first value of each.

        In the order in which they fired, the values as compact JSON. Raises CursorExpiredError if a
        signal may have been lost.
        """
        signals = self._signals
        found: list[Signal] = []
        for key, position in since:
            if position < signals.earliest(key):
                # Raises the error of a cursor.
                signals.position(key, signals.cursor(position))
            signal = signals.first_after(key, position)
            if signal is not None:
                found.append(signal)
        # Of several logs, offsets do not compare.
        found.sort(key=_order)
        return [(signal.key, signal.encoded.decode()) for signal in found]


def _order(signal: Signal) -> tuple[int, int]:
    return signal.at_ms, signal.offset
