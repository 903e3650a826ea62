"""An operation whose end somebody waits to be told of."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status


class CallbackOperation(DelayedOperation):
    """Tells once how it ended, whichever way; nobody, if whoever waits has left before.

    Subclasses say when it is complete.
    """

    __slots__ = ("_on_end",)

    def __init__(self, delay_ms: int, on_end: Callable[[Status], object]) -> None:
        """Call `on_end` once, with how it ended, unless it is left before."""
        super().__init__(delay_ms)
        self._on_end: Callable[[Status], object] | None = on_end

    def on_complete(self) -> None:
        """Tell: fired or expired."""
        self._tell()

    def on_cancellation(self) -> None:
        """Tell: cancelled or drained."""
        self._tell()

    def leave(self) -> None:
        """End without telling anybody: nobody waits any more. Idempotent."""
        self._on_end = None
        self.cancel()

    def _tell(self) -> None:
        if self._on_end is not None:
            self._on_end(self.status)
