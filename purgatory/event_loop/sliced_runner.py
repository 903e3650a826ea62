"""Work that is done a little in each turn of the event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future

from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.timer.clock import Clock

# Long enough that a turn's own cost (2 us) is lost in it, short enough that nobody notices.
SLICE_NS = 1_000_000
STEP = 16


class SlicedRunner:
    """Takes a walk to its end in slices of about a millisecond, whoever stops waiting for it."""

    __slots__ = ("_clock", "_done", "_loop", "_walk")

    def __init__(self, walk: ResumableBatch, loop: AbstractEventLoop, clock: Clock) -> None:
        """Prepare to take `walk` on `loop`."""
        self._walk = walk
        self._loop = loop
        self._clock = clock
        self._done: Future[int] = loop.create_future()

    def start(self) -> Future[int]:
        """Take the first slice now; return a future of how many operations the walk ended."""
        self._turn()
        return self._done

    def _turn(self) -> None:
        until_ns = self._clock.now_ns() + SLICE_NS
        try:
            while self._walk.step(STEP):
                if self._clock.now_ns() >= until_ns:
                    self._loop.call_soon(self._turn)
                    return
        except BaseException:
            # An interrupt, or a CancelledError from a callback: whoever is left is dealt with.
            self._loop.call_soon(self._turn)
            raise
        # A waiter that was cancelled has cancelled the future; the walk went on all the same.
        if not self._done.done():
            self._done.set_result(self._walk.count)
