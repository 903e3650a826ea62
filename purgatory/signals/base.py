"""The protocol of signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.signals.signal import Signal


@dataclass(frozen=True, slots=True)
class SignalStatistics:
    """What is kept."""

    signals: int
    bytes: int
    keys: int


class Signals(Protocol):
    """A bounded history of signals for each key.

    A position is an int that says how much a reader has seen: everything up to that offset. A
    cursor is the same, opaque, for those who are not in this process.
    """

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; raise InvalidValueError for what is not, or is too large."""
        ...

    def append(self, key: str, value: Any) -> Signal:
        """Keep `value` as the next signal of `key`; raise InvalidValueError unless it is JSON."""
        ...

    def head(self) -> int:
        """Return the position of a reader who has seen everything."""
        ...

    def position(self, key: str, cursor: str) -> int:
        """Return the position that `cursor` stands for, "0" being the earliest kept.

        Raises BadCursorError, or CursorExpiredError where a signal of `key` since then is gone.
        """
        ...

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        ...

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `count` signals of `key` came after `position`, or one that is gone.

        `count` is at least 1.
        """
        ...

    def read(self, key: str, position: int, limit: int) -> list[Signal]:
        """Return up to `limit` signals of `key` after `position`, the oldest first."""
        ...

    def first_after(self, key: str, position: int) -> Signal | None:
        """Return the oldest signal of `key` that is kept and came after `position`, or None."""
        ...

    def earliest(self, key: str) -> int:
        """Return the position just before the earliest signal that is kept of `key`."""
        ...

    def last(self, key: str) -> int:
        """Return the offset of the last signal of `key`, or of its dropping; 0 for neither."""
        ...

    def drop(self, key: str) -> None:
        """Forget the history of `key`; every cursor from before is expired for it."""
        ...

    def statistics(self) -> SignalStatistics:
        """Return how much is kept."""
        ...
