"""A function to be called by the timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED, TimerTask, refuse_delay


class ScheduledCall(TimerTask):
    """What `SystemTimer.call_later` returns: `cancel` it, or leave it be."""

    __slots__ = ("args", "callback")

    callback: Callable[..., object]
    args: tuple[Any, ...]

    def __init__(self, delay_ms: int, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` once `delay_ms` has passed."""
        # As TimerTask.__init__, written out: a second call is a third of the cost in plain Python.
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            refuse_delay(delay_ms)
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._pending = None
        self.callback = callback
        self.args = args

    def run(self) -> None:
        """Call it."""
        self.callback(*self.args)
