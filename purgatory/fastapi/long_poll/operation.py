"""The operation behind a request whose answer has not changed yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from purgatory.operations.callback_operation import CallbackOperation
from purgatory.signals import Signals
from purgatory.status import Status


class LongPollOperation(CallbackOperation):
    """Fires once anything happened to its keys since a position, though not before `begin`.

    A signal that was trimmed or dropped meanwhile counts, unlike for those who want to read it:
    the answer may have changed all the same.
    """

    kind: ClassVar[str] = "long-poll"

    __slots__ = ("_is_begun", "_position", "_signals", "watched_keys")

    def __init__(
        self,
        delay_ms: int,
        signals: Signals,
        keys: Iterable[str],
        position: int,
        on_end: Callable[[Status], object],
    ) -> None:
        """Call `on_end` once, with how it ended, unless it is left before."""
        super().__init__(delay_ms, on_end)
        self._signals = signals
        self.watched_keys = tuple(dict.fromkeys(keys))
        """Each once."""
        self._position = position
        self._is_begun = False

    def begin(self) -> None:
        """Fire from now on, and at once for what has happened already.

        Until then the deadline counts, but the endpoint is not to be called a second time: the
        first call has not returned yet.
        """
        self._is_begun = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if anything happened to a key."""
        if not self._is_begun:
            return False
        signals, position = self._signals, self._position
        for key in self.watched_keys:
            if signals.last(key) > position or signals.earliest(key) > position:
                return self.force_complete()
        return False
