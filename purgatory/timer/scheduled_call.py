"""Calls of functions by the timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython  # type: ignore[import-untyped,unused-ignore] # as in task.py
except ImportError:
    from purgatory.timer import not_compiled as cython

from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED, TimerTask, raise_invalid_delay


# Outside the cyclic collector, like TimerTask, so it releases its callback when it is done.
@cython.no_gc
@cython.cclass
class ScheduledCall(TimerTask):
    """One call of a function, as returned by `SystemTimer.call_later`. It cannot be reused."""

    __slots__ = ("args", "callback")

    callback: Callable[..., object] | None
    """None after it was called or cancelled."""
    args: tuple[Any, ...]

    def __init__(self, delay_ms: int, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` once `delay_ms` has passed."""
        # TimerTask.__init__, inlined: a second call is a third of the cost in plain Python.
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            raise_invalid_delay(delay_ms)
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._array = None
        self.callback = callback
        self.args = args

    def run(self) -> None:
        """Call the callback; raise RuntimeError if it was called or cancelled before."""
        callback = self.callback
        if callback is None:
            raise RuntimeError(
                f"{self!r} was called or cancelled before: a call is made once, so make a new one "
                "with call_later"
            )
        args = self.args
        # Released first: the callback may lead back here.
        self.callback = None
        self.args = ()
        callback(*args)

    def cancel(self) -> bool:
        """Leave the timer and release the callback; return True iff it was pending. Idempotent."""
        # TimerTask.cancel, inlined.
        array = self._array
        if array is not None:
            self.expiration_ms = NOT_SCHEDULED
            if cython.compiled:
                array.remove(self)
            else:
                # TaskArray.remove, inlined: the call is 4 % of adding and cancelling.
                self._array = None
                array.pending.count -= 1
                items = array.items
                index = self._index
                if index == len(items) - 1:
                    del items[index]
                    if index <= array.holes:
                        array.become_empty()
                else:
                    items[index] = None
                    array.holes = holes = array.holes + 1
                    if holes * 4 > len(items) * 3:
                        array.close_up()
        # Last: an object that is freed with the callback may cancel this call.
        self.callback = None
        self.args = ()
        return array is not None
