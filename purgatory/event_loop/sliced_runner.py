"""Batches that run in slices, over several turns of the event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future

from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.timer.clock import Clock

# Long compared with the cost of a turn (2 us), short compared with any latency that matters.
SLICE_NS = 1_000_000
STEP = 16


class SlicedRunner:
    """Runs a batch in slices of about a millisecond, to its end even if no caller waits for it."""

    __slots__ = ("_batch", "_clock", "_done", "_loop")

    def __init__(self, batch: ResumableBatch, loop: AbstractEventLoop, clock: Clock) -> None:
        """Prepare to run `batch` on `loop`."""
        self._batch = batch
        self._loop = loop
        self._clock = clock
        self._done: Future[int] = loop.create_future()

    def start(self) -> Future[int]:
        """Run the first slice now; return a future of how many operations the batch ended."""
        self._turn()
        return self._done

    def _turn(self) -> None:
        until_ns = self._clock.now_ns() + SLICE_NS
        try:
            while self._batch.advance(STEP):
                if self._clock.now_ns() >= until_ns:
                    self._loop.call_soon(self._turn)
                    return
        except BaseException:
            # An interrupt, or a CancelledError from a callback: the rest is still processed.
            self._loop.call_soon(self._turn)
            raise
        # A waiter that was cancelled has cancelled the future; the batch still ran to its end.
        if not self._done.done():
            self._done.set_result(self._batch.count)
