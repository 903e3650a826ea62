"""One shard of a load through a real timer and a real purgatory, in simulated time."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from purgatory.pipeline.replay.cpu_time import CpuTime
from purgatory.pipeline.replay.load_batch import NEVER_NS, Integers, LoadBatch
from purgatory.pipeline.replay.load_driver import LoadDriver
from purgatory.pipeline.replay.replayed_operation import ReplayedOperation
from purgatory.pipeline.replay.time_slice import TimeSlice
from purgatory.timer.clock import NS_PER_MS

_NOTHING: Integers = np.empty(0, np.int64)
_NOBODY = LoadBatch(_NOTHING, _NOTHING, _NOTHING, _NOTHING, [], [])
# A time behind which a batch of arrivals is due as a whole.
_ALL_OF_IT = NEVER_NS - 1


class Simulation:
    """A `SystemTimer` and a `DelayedOperationPurgatory` on a clock that leaps to the next event.

    Events are arrivals, ends and buckets of the wheel: as a reaper would, it advances the timer
    exactly when a bucket opens. Nothing in it depends on how long it takes, so the same batches
    give the same figures, but for the CPU time.

    In memory are one batch, and the operations that wait.
    """

    def __init__(self, *, tick_ms: int = 1, wheel_size: int = 256, slice_ms: int = 60_000) -> None:
        """Begin with an empty wheel; count for each `slice_ms` of simulated time."""
        self._slice_ns = slice_ms * NS_PER_MS
        self._geometry = (tick_ms, wheel_size)
        # The operations of earlier batches of which we know the end, and these ends.
        self._operations: list[ReplayedOperation | None] = []
        self._fired_keys: list[str | None] = []
        self._end_ns = _NOTHING
        self._cpu_time = CpuTime()

    def run(self, batches: Iterable[LoadBatch]) -> Iterator[TimeSlice]:
        """Play `batches`, in order of time, and then go on until nobody waits.

        Yields what happened, a slice of time after the other; slices without an event are left out.
        """
        driver: LoadDriver | None = None
        for batch in self._grown(batches):
            if driver is None:
                driver = self._driver(int(batch.arrival_ns[0]))
            with self._at_work():
                self._play(driver, batch)
            yield from driver.taken()
        if driver is not None:
            with self._at_work():
                self._play_out(driver)
            yield from driver.taken()

    def _grown(self, batches: Iterable[LoadBatch]) -> Iterator[LoadBatch]:
        """Put batches together until they are no less than what is carried from one to the next.

        So what it costs to carry an operation does not grow with how many wait.
        """
        gathered: list[LoadBatch] = []
        count = 0
        for batch in batches:
            gathered.append(batch)
            count += len(batch)
            if count and count >= len(self._operations):
                yield LoadBatch.concatenated(gathered)
                gathered, count = [], 0
        if count:
            yield LoadBatch.concatenated(gathered)

    def _driver(self, arrival_ns: int) -> LoadDriver:
        start_ns = arrival_ns - arrival_ns % self._slice_ns
        return LoadDriver(start_ns, self._slice_ns, *self._geometry, self._cpu_time)

    def _play(self, driver: LoadDriver, batch: LoadBatch) -> None:
        until_ns = int(batch.arrival_ns[-1])
        # Nothing ends before it arrives, whatever was recorded.
        ends = np.maximum(batch.end_ns, batch.arrival_ns)
        self._end_ns = np.concatenate([self._end_ns, ends])
        self._operations += [None] * len(batch)
        self._fired_keys += batch.fired_keys
        self._drive(driver, batch, until_ns)
        self._carry(until_ns)

    def _play_out(self, driver: LoadDriver) -> None:
        """Let everything end that has an end, and the rest expire."""
        self._drive(driver, _NOBODY, _ALL_OF_IT)
        self._operations.clear()
        driver.play_out()

    def _drive(self, driver: LoadDriver, batch: LoadBatch, until_ns: int) -> None:
        """Let the operations of `batch` arrive, and all end whose end is not after `until_ns`."""
        ends = np.flatnonzero(self._end_ns <= until_ns)
        ends = ends[np.argsort(self._end_ns[ends], kind="stable")]
        driver.play(batch, self._operations, self._fired_keys, self._end_ns.data, ends.data)

    def _carry(self, after_ns: int) -> None:
        """Keep of the operations those that have an end ahead of them; the timer has the others."""
        ahead = np.flatnonzero((self._end_ns > after_ns) & (self._end_ns < NEVER_NS))
        found = ((number, self._operations[number]) for number in ahead.tolist())
        carried = [
            (number, operation)
            for number, operation in found
            if operation is not None and not operation.is_completed
        ]
        numbers = [number for number, _ in carried]
        self._operations = [operation for _, operation in carried]
        self._fired_keys = [self._fired_keys[number] for number in numbers]
        self._end_ns = self._end_ns[numbers]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the CPU time, and leave cycles alone.

        There are none, and looking for them takes longer than all the rest.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        self._cpu_time.resume()
        try:
            yield
        finally:
            self._cpu_time.pause()
            if was_enabled:
                gc.enable()
