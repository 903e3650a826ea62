"""The simulation of one shard of a load."""

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
_EMPTY = LoadBatch(_NOTHING, _NOTHING, _NOTHING, _NOTHING, [], [])
# Later than every end.
_ALL_OF_IT = NEVER_NS - 1


class Simulation:
    """Feeds a `LoadDriver` with batches, and carries waiting operations from batch to batch.

    Nothing depends on real time, so the same batches give the same figures, except for the CPU
    time. One batch and the waiting operations are in memory.
    """

    def __init__(self, *, tick_ms: int = 1, wheel_size: int = 256, slice_ms: int = 60_000) -> None:
        """Begin with an empty wheel; count for each `slice_ms` of simulated time."""
        self._slice_ns = slice_ms * NS_PER_MS
        self._geometry = (tick_ms, wheel_size)
        # The operations of earlier batches with a known end, and these ends.
        self._operations: list[ReplayedOperation | None] = []
        self._fired_keys: list[str | None] = []
        self._end_ns = _NOTHING
        self._cpu_time = CpuTime()

    def run(self, batches: Iterable[LoadBatch]) -> Iterator[TimeSlice]:
        """Replay `batches`, in order of time, and continue until no operation waits.

        Yields the slices of time in order; slices without an event are left out.
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
        """Merge batches until they have at least as many operations as are carried over.

        So the cost of carrying an operation does not grow with the number that wait.
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
        # No operation ends before it arrives, whatever was recorded.
        ends = np.maximum(batch.end_ns, batch.arrival_ns)
        self._end_ns = np.concatenate([self._end_ns, ends])
        self._operations += [None] * len(batch)
        self._fired_keys += batch.fired_keys
        self._drive(driver, batch, until_ns)
        self._carry(until_ns)

    def _play_out(self, driver: LoadDriver) -> None:
        """Let operations with an end reach it, and the others expire."""
        self._drive(driver, _EMPTY, _ALL_OF_IT)
        self._operations.clear()
        driver.play_out()

    def _drive(self, driver: LoadDriver, batch: LoadBatch, until_ns: int) -> None:
        """Let the operations of `batch` arrive, and those with an end up to `until_ns` end."""
        ends = np.flatnonzero(self._end_ns <= until_ns)
        ends = ends[np.argsort(self._end_ns[ends], kind="stable")]
        driver.play(batch, self._operations, self._fired_keys, self._end_ns.data, ends.data)

    def _carry(self, after_ns: int) -> None:
        """Keep the operations whose end is still to come; the timer has the others."""
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
        """Count the CPU time, with the garbage collector off.

        There are no cycles, and searching for them takes longer than everything else.
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
