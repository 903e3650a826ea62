"""The driver of a load: every event at its time, through a timer and a purgatory."""

from __future__ import annotations

from purgatory.operations.delayed_operation import (
    DelayedOperation,
    DelayedOperationPurgatory,
    WatchStatistics,
)
from purgatory.pipeline.replay.loads import NEVER_NS, Fate, LoadBatch
from purgatory.pipeline.replay.summary import CpuTime, TimeSlice
from purgatory.timer.clock import NS_PER_MS
from purgatory.timer.system_timer import SystemTimer

# Module variables that the compiler may turn into C integers.
_FORCED = int(Fate.FORCED)
_FIRED = int(Fate.FIRED)
_NEVER_NS = NEVER_NS
# Expired operations that are recorded one by one before they are counted together.
_NOTES = 10_000


class ReplayedOperation(DelayedOperation):
    """Completes at its known end through its key, like any other operation, or by its deadline.

    All attributes declared here must be set before it is watched.
    """

    __slots__ = ("deadline_ns", "driver", "end_ns", "fate")

    # Not arguments of __init__: that would cost as much as the purgatory's work on the operation.
    deadline_ns: int
    """Exact; the timer rounds it up to a tick."""
    end_ns: int
    fate: int
    driver: LoadDriver

    def try_complete(self) -> bool:
        """Complete iff the current fire is not before its end.

        Operations that one fire completed in the load are completed by one check here too.
        """
        return self.end_ns <= self.driver.fired_ns and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the purgatory counts it."""

    def on_expiration(self) -> None:
        """Record the lateness."""
        driver = self.driver
        driver.late_ns.append(driver.opened_ns - self.deadline_ns)
        driver.fates.append(self.fate)


class LoadDriver:
    """A `SystemTimer`, a `DelayedOperationPurgatory`, and their clock, which jumps to events.

    Events are arrivals, ends and buckets of the wheel: as a reaper would, it advances the timer
    exactly when a bucket opens. A replay spends its time here, so it is compiled with the core.
    """

    # Invariant: the clock is before _next_ns, which is the earlier of _armed_ns, when the next
    # bucket opens, and _slice_end_ns.

    def __init__(
        self, start_ns: int, slice_ns: int, tick_ms: int, wheel_size: int, cpu_time: CpuTime
    ) -> None:
        """Begin at `start_ns` with an empty wheel, and count for each `slice_ns`."""
        # The time of the event that is replayed, both monotonic and of the wall.
        self.at_ns: int = start_ns
        # The times of the current fire and of the opening bucket.
        self.fired_ns: int = -1
        self.opened_ns: int = -1
        # One element for each expired operation.
        self.late_ns: list[int] = []
        self.fates: list[int] = []
        self._timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=self)
        self._timer.on_earlier = self._on_earlier
        self._core = DelayedOperationPurgatory("replay", self._timer)
        self._cpu_time = cpu_time
        self._armed_ns: int = NEVER_NS
        self._slice_ns: int = slice_ns
        self._slice_end_ns: int = start_ns + slice_ns
        self._next_ns: int = self._slice_end_ns
        # Completed slices.
        self._slices: list[TimeSlice] = []
        self._slice = TimeSlice(start_ns)
        self._before: WatchStatistics = self._core.statistics()
        # Counts of the current slice.
        self._arrived: int = 0
        self._at_once: int = 0
        self._peak: int = 0
        self._buckets: int = 0
        self._cascaded: int = 0
        self._longest_run: int = 0

    def now_ns(self) -> int:
        """Return the time of the event in nanoseconds."""
        return self.at_ns

    def wall_ms(self) -> int:
        """Return the time of the event in whole milliseconds."""
        return self.at_ns // NS_PER_MS

    def play(
        self,
        batch: LoadBatch,
        operations: list[ReplayedOperation | None],
        fired_keys: list[str | None],
        end_ns: memoryview,
        ends: memoryview,
    ) -> None:
        """Let the operations of `batch` arrive, and those end whose numbers are in `ends`.

        The number of an operation is its index in `operations`, `fired_keys` and `end_ns`, where
        those of the batch come last; each is added to `operations` when it arrives, and removed
        when it has ended. `ends` is in order of time. At equal times, arrivals come first.
        """
        # Elements of views are Python integers, those of arrays numpy's.
        arrival_ns = batch.arrival_ns.data
        delay_ms = batch.delay_ms.data
        fate = batch.fate.data
        keys = batch.keys
        core = self._core
        count = len(arrival_ns)
        ending = len(ends)
        first = len(operations) - count
        arrived = 0
        place = 0
        number = 0
        while True:
            until_ns = _NEVER_NS
            if place < ending:
                number = ends[place]
                until_ns = end_ns[number]
            while arrived < count:
                at_ns = arrival_ns[arrived]
                if at_ns > until_ns:
                    break
                if at_ns >= self._next_ns:
                    self._pass_time(at_ns)
                self.at_ns = at_ns
                delay = delay_ms[arrived]
                operation = ReplayedOperation(delay)
                operation.deadline_ns = at_ns + delay * NS_PER_MS
                operation.end_ns = end_ns[first + arrived]
                operation.fate = fate[arrived]
                operation.driver = self
                operations[first + arrived] = operation
                if core.try_complete_else_watch(operation, keys[arrived]):
                    self._at_once += 1
                self._arrived += 1
                if core._delayed > self._peak:
                    self._peak = core._delayed
                arrived += 1
            if place == ending:
                break
            place += 1
            if until_ns >= self._next_ns:
                self._pass_time(until_ns)
            self.at_ns = until_ns
            ended = operations[number]
            operations[number] = None
            assert ended is not None, "an operation ends once, and not before it arrives"
            # The most frequent case, without another call.
            if ended.fate == _FORCED:
                ended.force_complete()
            else:
                self._end(ended, fired_keys[number])

    def play_out(self) -> None:
        """Let time pass until no operation waits."""
        while self._core.delayed:
            self._pass_time(self._next_ns)
        self._close_slice()

    def taken(self) -> list[TimeSlice]:
        """Return the slices completed since the last call."""
        taken, self._slices = self._slices, []
        return taken

    def _end(self, operation: ReplayedOperation, fired_key: str | None) -> None:
        if operation.fate != _FIRED:
            operation.cancel()
        elif not operation.is_completed:
            # Other operations on the key are tried too, as they were when the key was fired.
            self.fired_ns = self.at_ns
            self._core.check_and_complete(fired_key)

    def _pass_time(self, until_ns: int) -> None:
        """Open every bucket and close every slice up to `until_ns`, each at its time."""
        while self._next_ns <= until_ns:
            self.at_ns = self._next_ns
            if self._armed_ns <= self._next_ns:
                self._open_bucket()
            if self._slice_end_ns <= self._next_ns:
                self._close_slice()
            self._next_ns = min(self._armed_ns, self._slice_end_ns)

    def _open_bucket(self) -> None:
        # Like the reaper, which sleeps until then.
        timer = self._timer
        cascaded = timer.cascaded
        self.opened_ns = self.at_ns
        ran = timer.advance_clock()
        moved = timer.cascaded - cascaded
        self._buckets += 1
        self._cascaded += moved
        self._longest_run = max(self._longest_run, ran + moved)
        if len(self.fates) >= _NOTES:
            self._count_expired()
        next_ms = timer.next_expiration_ms()
        self._armed_ns = NEVER_NS if next_ms is None else next_ms * NS_PER_MS

    def _on_earlier(self, expiration_ms: int) -> None:
        # A bucket whose time has come opens at once.
        self._armed_ns = max(expiration_ms * NS_PER_MS, self.at_ns)
        self._next_ns = min(self._armed_ns, self._slice_end_ns)

    def _close_slice(self) -> None:
        piece = self._slice
        piece.operations, self._arrived = self._arrived, 0
        piece.at_once, self._at_once = self._at_once, 0
        piece.peak, self._peak = self._peak, 0
        piece.buckets, self._buckets = self._buckets, 0
        piece.cascaded, self._cascaded = self._cascaded, 0
        piece.longest_run, self._longest_run = self._longest_run, 0
        after = self._core.statistics()
        piece.end(self._before, after)
        self._count_expired()
        piece.cpu_ns = self._cpu_time.lap_ns()
        if piece.has_events:
            self._slices.append(piece)
        self._before = after
        self._slice = TimeSlice(self._slice_end_ns)
        self._slice_end_ns += self._slice_ns

    def _count_expired(self) -> None:
        if self.fates:
            self._slice.count_expired(self.late_ns, self.fates)
            self.late_ns.clear()
            self.fates.clear()
