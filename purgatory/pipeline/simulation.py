"""One shard of a load through a real timer and a real purgatory, in simulated time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.pipeline.load_batch import NEVER_NS, Integers, LoadBatch
from purgatory.pipeline.replayed_operation import Fate, ReplayedOperation, ReplayNotes
from purgatory.pipeline.time_slice import TimeSlice
from purgatory.testing import MockClock
from purgatory.timer.clock import NS_PER_MS
from purgatory.timer.system_timer import SystemTimer

_NOTHING: Integers = np.empty(0, np.int64)
_FORCED = int(Fate.FORCED)
_FIRED = int(Fate.FIRED)
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
        self._notes = ReplayNotes()
        # The operations of earlier batches of which we know the end, and these ends.
        self._operations: list[ReplayedOperation] = []
        self._fired_keys: list[str | None] = []
        self._end_ns = _NOTHING
        self._slices: list[TimeSlice] = []
        self._slice_end_ns = 0
        self._armed_ns = NEVER_NS
        self._next_ns = 0
        # The CPU time up to which the slices have it.
        self._counted_ns = 0
        # When the work on the batch before was over.
        self._paused_ns = 0
        # Whether the time of the load has begun.
        self._has_begun = False

    def run(self, batches: Iterable[LoadBatch]) -> Iterator[TimeSlice]:
        """Play `batches`, in order of time, and then go on until nobody waits.

        Yields what happened, a slice of time after the other; slices without an event are left out.
        """
        for batch in self._grown(batches):
            if not self._has_begun:
                self._begin(int(batch.arrival_ns[0]))
            with self._at_work():
                self._play(batch)
            yield from self._taken()
        if self._has_begun:
            with self._at_work():
                self._play_out()
            yield from self._taken()

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

    def _begin(self, arrival_ns: int) -> None:
        start_ns = arrival_ns - arrival_ns % self._slice_ns
        tick_ms, wheel_size = self._geometry
        self._clock = MockClock()
        self._clock.advance_ns(start_ns)
        self._timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=self._clock)
        self._timer.on_earlier = self._on_earlier
        self._core = DelayedOperationPurgatory("replay", self._timer)
        self._slice = TimeSlice(start_ns)
        self._before = self._core.statistics()
        self._slice_end_ns = self._next_ns = start_ns + self._slice_ns
        self._has_begun = True

    def _play(self, batch: LoadBatch) -> None:
        old = len(self._operations)
        deadline_ns = batch.arrival_ns + batch.delay_ms * NS_PER_MS
        notes = self._notes
        self._operations += [
            ReplayedOperation(delay_ms, deadline, end_ns, fate, notes)
            for delay_ms, deadline, end_ns, fate in zip(
                batch.delay_ms.tolist(),
                deadline_ns.tolist(),
                batch.end_ns.tolist(),
                batch.fate.tolist(),
                strict=True,
            )
        ]
        self._fired_keys += batch.fired_keys
        self._end_ns = np.concatenate([self._end_ns, batch.end_ns])
        until_ns = int(batch.arrival_ns[-1])
        self._handle(batch.arrival_ns, old, batch.keys, until_ns)
        self._carry(until_ns)

    def _play_out(self) -> None:
        """Let everything end that has an end, and the rest expire."""
        self._handle(_NOTHING, len(self._operations), [], _ALL_OF_IT)
        self._operations.clear()
        while self._core.delayed:
            self._pass_time(self._next_ns)
        self._close_slice()

    def _handle(
        self, arrival_ns: Integers, first: int, keys: Sequence[tuple[str, ...]], until_ns: int
    ) -> None:
        """Let the operations from `first` on arrive, and all end whose end is not after `until_ns`.

        Where two are at once, arrivals come first.
        """
        ends = np.flatnonzero(self._end_ns <= until_ns)
        times = np.concatenate([arrival_ns, self._end_ns[ends]])
        # Ends as negative numbers.
        numbers = np.concatenate([np.arange(len(arrival_ns)) + first, ~ends])
        order = np.argsort(times, kind="stable")
        self._drive(times[order].tolist(), numbers[order].tolist(), first, keys)

    def _drive(
        self,
        times_ns: list[int],
        numbers: list[int],
        first: int,
        keys: Sequence[tuple[str, ...]],
    ) -> None:
        # Attributes as local names: this loop is what a replay takes its time for.
        advance_ns, core, operations = self._clock.advance_ns, self._core, self._operations
        watch, end = core.try_complete_else_watch, self._end
        now_ns = self._clock.now_ns()
        for at_ns, number in zip(times_ns, numbers, strict=True):
            if at_ns >= self._next_ns:
                self._pass_time(at_ns)
                now_ns = self._clock.now_ns()
            advance_ns(at_ns - now_ns)
            now_ns = at_ns
            if number >= 0:
                piece = self._slice
                piece.operations += 1
                if watch(operations[number], keys[number - first]):
                    piece.at_once += 1
                waiting = core.delayed
                if waiting > piece.peak:
                    piece.peak = waiting
                continue
            operation = operations[~number]
            # The most frequent without a call of ours.
            if operation.fate == _FORCED:
                operation.force_complete()
            else:
                end(operation, ~number)

    def _end(self, operation: ReplayedOperation, number: int) -> None:
        if operation.fate != _FIRED:
            operation.cancel()
        elif not operation.is_completed:
            # Whoever else watches the key is tried too, as it was when the key was fired.
            self._notes.now_ns = self._clock.now_ns()
            self._core.check_and_complete(self._fired_keys[number])

    def _carry(self, after_ns: int) -> None:
        """Keep of the operations those that have an end ahead of them; the timer has the others."""
        ahead = np.flatnonzero((self._end_ns > after_ns) & (self._end_ns < NEVER_NS))
        carried = [n for n in ahead.tolist() if not self._operations[n].is_completed]
        self._operations = [self._operations[n] for n in carried]
        self._fired_keys = [self._fired_keys[n] for n in carried]
        self._end_ns = self._end_ns[carried]

    def _pass_time(self, until_ns: int) -> None:
        """Open every bucket and close every slice up to `until_ns`, each at its time."""
        clock = self._clock
        while self._next_ns <= until_ns:
            clock.advance_ns(self._next_ns - clock.now_ns())
            if self._armed_ns <= self._next_ns:
                self._open_bucket()
            if self._slice_end_ns <= self._next_ns:
                self._close_slice()
            self._next_ns = min(self._armed_ns, self._slice_end_ns)

    def _open_bucket(self) -> None:
        # As the reaper does, which sleeps until then.
        timer = self._timer
        cascaded = timer.cascaded
        ran = timer.advance_clock()
        moved = timer.cascaded - cascaded
        self._slice.note_bucket(self._clock.now_ns(), self._notes.expired, ran + moved, moved)
        self._notes.expired.clear()
        next_ms = timer.next_expiration_ms()
        self._armed_ns = NEVER_NS if next_ms is None else next_ms * NS_PER_MS

    def _on_earlier(self, expiration_ms: int) -> None:
        # A bucket that opened meanwhile, or is opening, is at hand at once.
        self._armed_ns = max(expiration_ms * NS_PER_MS, self._clock.now_ns())
        self._next_ns = min(self._armed_ns, self._slice_end_ns)

    def _close_slice(self) -> None:
        after = self._core.statistics()
        self._slice.end(self._before, after)
        now_ns = time.thread_time_ns()
        self._slice.cpu_ns, self._counted_ns = now_ns - self._counted_ns, now_ns
        if self._slice.has_events:
            self._slices.append(self._slice)
        self._before = after
        self._slice = TimeSlice(self._slice_end_ns)
        self._slice_end_ns += self._slice_ns

    def _taken(self) -> list[TimeSlice]:
        taken, self._slices = self._slices, []
        return taken

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the CPU time, and leave cycles alone.

        There are none, and looking for them takes longer than all the rest.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        self._counted_ns += time.thread_time_ns() - self._paused_ns
        try:
            yield
        finally:
            self._paused_ns = time.thread_time_ns()
            if was_enabled:
                gc.enable()
