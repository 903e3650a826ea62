"""The wait of a request whose response has not changed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from purgatory.operations import DelayedOperation
from purgatory.signals import MemorySignals, WaitOperation
from purgatory.status import Status


class LongPollOperation(WaitOperation):
    """Fires once anything happened to its keys since a position, though not before `begin`.

    A key whose history was trimmed counts, although it cannot be read: the response may have
    changed all the same.
    """

    kind: ClassVar[str] = "long-poll"

    __slots__ = ("_is_begun", "_report")

    def __init__(
        self,
        delay_ms: int,
        signals: MemorySignals,
        keys: tuple[str, ...],
        positions: int | tuple[int, ...],
        on_end: Callable[[Status], object],
    ) -> None:
        """Call `on_end` once with the status, unless the wait is abandoned; `keys` are unique."""
        super().__init__(delay_ms, signals, keys, positions)
        self._report = on_end
        self._is_begun = False

    def begin(self) -> None:
        """Fire from now on, and at once for what has happened already.

        Until then only the deadline counts: the endpoint cannot be called again before the first
        call has returned.
        """
        self._is_begun = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if anything happened to a key."""
        if not self._is_begun:
            return False
        if super().try_complete():
            return True
        earliest = self.signals.earliest
        where = zip(self.watched_keys, self.positions, strict=True)
        is_forgotten = any(earliest(key) > position for key, position in where)
        return is_forgotten and self.force_complete()

    def _settle(self, status: Status) -> bool:
        # Never outdated: the endpoint, which is called again, reads the state rather than signals.
        return DelayedOperation._settle(self, status)

    def on_complete(self) -> None:
        """Report the status."""
        if not self.is_abandoned:
            self._report(self.status)
