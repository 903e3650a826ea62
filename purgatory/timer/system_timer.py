"""The timer: a timing wheel, and the time (Kafka: SystemTimer)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

try:
    # The compiler wants these very words here; without it a stand-in says that nobody compiled.
    import cython  # type: ignore[import-untyped,unused-ignore] # it ships no types
except ImportError:
    from purgatory.timer import not_compiled as cython

from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock
from purgatory.timer.scheduled_call import ScheduledCall
from purgatory.timer.task import (
    ARRAY_SIZE,
    MAX_DELAY_MS,
    NOT_SCHEDULED,
    TimerTask,
    raise_invalid_delay,
)
from purgatory.timer.task_list import TimerTaskList
from purgatory.timer.wheel import TimingWheel

logger = logging.getLogger("purgatory.timer")

# Second names, which the compiler may make plain C integers of.
_MAX_DELAY_MS = MAX_DELAY_MS
_ARRAY_SIZE = ARRAY_SIZE
_NO_LIMIT: Final = 2**62

is_compiled: Final[bool] = cython.compiled

_expiration_ms = attrgetter("expiration_ms")
_new_task = ScheduledCall.__new__


class SystemTimer:
    """Runs tasks when their delays have passed: never early, less than one tick late.

    Whoever owns the timer calls `advance_clock` from time to time, best when `next_expiration_ms()`
    has come; due tasks run inside that call, on its thread. No method may be called from two
    threads: there are no locks. Adding costs O(levels), cancelling O(1), an empty tick nothing.

    Due tasks run in order of deadline, tick by tick, and within a tick in the order in which they
    were added.
    """

    __slots__ = (
        "_buckets",
        "_cascading",
        "_ceiling_ms",
        "_ceiling_ns",
        "_clock",
        "_due_now",
        "_floor_ns",
        "_is_advancing",
        "_is_system",
        "_now_ns",
        "_ready",
        "_span_ms",
        "_tick_ms",
        "_upper_buckets",
        "_upper_from_ms",
        "_wheel",
        "_wheel_size",
        "cascaded",
        "longest_lateness_ms",
        "on_earlier",
    )

    def __init__(
        self,
        *,
        tick_ms: int = 1,
        wheel_size: int = 256,
        clock: Clock | None = None,
    ) -> None:
        """Make an empty timer. Raises ValueError for a tick below 1 or fewer than 2 buckets."""
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now_ns = self._clock.now_ns
        # The compiled form asks the system without a Python call in between.
        self._is_system: bool = type(self._clock) is SystemClock
        self._wheel = TimingWheel(tick_ms, wheel_size, self._now_ns() // NS_PER_MS)
        # The millisecond in which the clock was read last: its end in ms, and both ends in ns.
        self._ceiling_ms: int = 0
        self._ceiling_ns: int = 0
        self._floor_ns: int = 0
        # Copies of what the first two levels are, for the fast way of `add`.
        self._tick_ms: int = tick_ms
        self._wheel_size: int = wheel_size
        self._span_ms: int = self._wheel.interval_ms
        self._buckets = self._wheel._buckets
        self._upper_buckets: list[TimerTaskList | None] = [None] * wheel_size
        self._upper_from_ms: int = 0
        # Buckets that have opened, waiting to run: more than one only where a limit cut it short.
        self._ready: deque[TimerTaskList] = deque()
        # The tasks without delay, for the next advance.
        self._due_now = TimerTaskList(self._wheel.pending)
        # A bucket of an upper level that a limit left half moved, and that level.
        self._cascading: tuple[TimingWheel, TimerTaskList] | None = None
        self._is_advancing: bool = False
        # Called with the time of a bucket that is new and the earliest: the moment for an owner
        # that sleeps until `next_expiration_ms()` to sleep for less.
        self.on_earlier: Callable[[int], object] | None = None
        # How long after its time the last task of a bucket ran, at the worst.
        self.longest_lateness_ms: int = 0
        # How many tasks have moved down, each counted once for every level that it left.
        self.cascaded: int = 0
        self._advance_wheel(self._wheel.current_ms)

    def __len__(self) -> int:
        """Return how many tasks are pending, exactly, in O(1)."""
        return self._wheel.pending.count

    def __bool__(self) -> bool:
        """True: a timer without tasks is still a timer."""
        return True

    def __del__(self) -> None:
        """Let go of what is pending, at once: the links between tasks are cycles."""
        if cython.compiled and is_exiting():  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
            # All memory goes, and what this would call has gone.
            return
        try:
            is_made = self._due_now is not None
        except AttributeError:
            # As None is when compiled: __init__ refused its arguments.
            return
        if is_made:
            for task in self.close():
                task.cancel()

    @property
    def clock(self) -> Clock:
        """The clock that this timer goes by."""
        return self._clock

    @property
    def wheel(self) -> TimingWheel:
        """The lowest wheel, for statistics."""
        return self._wheel

    def now_ms(self) -> int:
        """Return the time in whole milliseconds, rounded down, and never before what has run."""
        now_ms = self._now_ns() // NS_PER_MS
        reached_ms = self._wheel.current_ms
        # To call max(), or min(), takes plain Python as long as half a task does.
        return now_ms if now_ms > reached_ms else reached_ms

    def call_later(
        self, delay_ms: int, callback: Callable[..., object], *args: Any
    ) -> ScheduledCall:
        """Call `callback(*args)` in `delay_ms` whole milliseconds; return what can cancel it.

        As `loop.call_later`, which takes seconds. Raises as `TimerTask` and `add` do.
        """
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            raise_invalid_delay(delay_ms)
        if cython.compiled:
            return self._new_call(delay_ms, callback, args)
        else:
            # The constructor and `add`, written out: the two calls are a fourth of the cost.
            call = _new_task(ScheduledCall)
            call.delay_ms = delay_ms
            call.callback = callback
            call.args = args
            if delay_ms <= 0:
                call._array = None
                self._add_at_once(call)
                return call
            read_ns = self._now_ns
            now_ns = read_ns()
            if not self._floor_ns < now_ns <= self._ceiling_ns:
                self._settle_clock(now_ns)
            expiration_ms = self._ceiling_ms + delay_ms
            tick_ms = self._tick_ms
            if tick_ms != 1:
                expiration_ms = -(-expiration_ms // tick_ms) * tick_ms
            call.expiration_ms = expiration_ms
            if expiration_ms < self._upper_from_ms:
                tick = expiration_ms // tick_ms
                bucket = self._buckets[tick % self._wheel_size]
            else:
                tick_ms = self._span_ms
                tick = expiration_ms // tick_ms
                bucket = self._upper_buckets[tick % self._wheel_size]
            if bucket is not None and bucket.expiration_ms == tick * tick_ms:
                array = bucket.last
                if array is not None:
                    items = array.items
                    index = len(items)
                    if index < _ARRAY_SIZE:
                        items.append(call)
                        call._array = array
                        call._index = index
                        array.pending.count += 1
                        return call
            call._array = None
            self._place(call)
            return call

    def add(self, task: TimerTask) -> None:
        """Schedule `task` for `task.delay_ms` from now, or again if it is pending already.

        The deadline is rounded up to a tick, so that nothing is early. A delay of zero or less is
        due at the next advance; nothing ever runs inside `add`.
        Raises ValueError for a delay beyond MAX_DELAY_MS.
        """
        delay_ms = task.delay_ms
        if not 0 < delay_ms <= _MAX_DELAY_MS:
            self._add_at_once(task)
            return
        array = task._array
        if array is not None:
            array.remove(task)
        if cython.compiled and self._is_system:
            now_ns = system_now_ns()  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            # In two steps: to call what a slot holds takes plain Python twice as long in one.
            read_ns = self._now_ns
            now_ns = read_ns()
        if not self._floor_ns < now_ns <= self._ceiling_ns:
            self._settle_clock(now_ns)
        # The present rounded up to a millisecond, and then the deadline to a tick: that comes to
        # the same as rounding once.
        expiration_ms = self._ceiling_ms + delay_ms
        tick_ms = self._tick_ms
        if tick_ms != 1:
            # Minus floor division of the negative is division rounded up.
            expiration_ms = -(-expiration_ms // tick_ms) * tick_ms
        task.expiration_ms = expiration_ms
        # The fast way, which most tasks go: into a bucket that is queued already, on one of the
        # first two levels. Written out, because a call costs plain Python as much as all of it.
        if expiration_ms < self._upper_from_ms:
            buckets = self._buckets
        else:
            tick_ms = self._span_ms
            buckets = self._upper_buckets
        if cython.compiled:
            tick = quotient(expiration_ms, tick_ms)  # type: ignore[name-defined] # noqa: F821 - as above
            bucket = buckets[remainder(tick, self._wheel_size)]  # type: ignore[name-defined] # noqa: F821 - as above
        else:
            tick = expiration_ms // tick_ms
            bucket = buckets[tick % self._wheel_size]
        if bucket is None or bucket.expiration_ms != tick * tick_ms:
            self._place(task)
            return
        array = bucket.last
        if array is None:
            self._place(task)
            return
        items = array.items
        index = len(items)
        if index >= _ARRAY_SIZE:
            self._place(task)
            return
        # TaskArray.append, written out.
        items.append(task)
        task._array = array
        task._index = index
        array.pending.count += 1

    def advance_clock(self, limit: int | None = None) -> int:
        """Run what is due by now and return how many tasks ran.

        `limit` bounds the work of this call, in tasks run or moved down a level; what is left stays
        due, `next_expiration_ms()` says so, and the next call goes on with it.
        """
        budget = _NO_LIMIT if limit is None else limit
        now_ms = self.now_ms()
        ran = 0
        if self._due_now.arrays:
            self._open_due_now()
        was_advancing, self._is_advancing = self._is_advancing, True
        try:
            while budget > 0:
                if self._ready:
                    count = self._run_some(self._ready[0], budget)
                    ran += count
                    budget -= count
                    continue
                moved = self._open_bucket(now_ms, budget)
                if moved < 0:
                    break
                budget -= moved
        finally:
            self._is_advancing = was_advancing
            if self._due_now.arrays:
                self._place_due_now()
        return ran

    def next_expiration_ms(self) -> int | None:
        """Return the clock time of the next bucket to open; None iff no task is pending.

        A time at or before now means that `advance_clock` has work. For a task far away it is the
        time when its bucket moves down a level, which is earlier than its deadline.
        """
        is_moving = self._cascading is not None and bool(self._cascading[1])
        if is_moving or self._due_now or any(self._ready):
            return self._wheel.current_ms
        return self._wheel.next_expiration_ms()

    def close(self) -> list[TimerTask]:
        """Take out every task, without running it, and return them in the order they were due."""
        tasks: list[TimerTask] = []
        if self._cascading is not None:
            # What has come down of a bucket was added before what has not.
            wheel, bucket = self._cascading
            wheel.cascade(bucket, _NO_LIMIT)
            self._cascading = None
        for task_list in self._ready:
            task_list.flush(tasks.append)
        self._ready.clear()
        tasks += self._wheel.clear()
        # Those without delay came last; sorting keeps the order of those of one tick.
        self._due_now.flush(tasks.append)
        return sorted(tasks, key=_expiration_ms)

    def _new_call(
        self, delay_ms: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> ScheduledCall:
        # Without the call of a constructor, which takes as long as all the rest when compiled.
        call = ScheduledCall.__new__(ScheduledCall)
        call.delay_ms = delay_ms
        call.expiration_ms = NOT_SCHEDULED
        call.callback = callback
        call.args = args
        self.add(call)
        return call

    def _add_at_once(self, task: TimerTask) -> None:
        """Add a task without delay, or refuse one with a delay beyond the limit."""
        if task.delay_ms > 0:
            raise_invalid_delay(task.delay_ms)
        if task._array is not None:
            task._array.remove(task)
        now_ms = self._settle_clock(self._now_ns()) // NS_PER_MS
        task.expiration_ms = now_ms - now_ms % self._tick_ms
        if self._is_advancing:
            self._due_now.add(task)
        else:
            self._place(task)

    def _settle_clock(self, now_ns: int) -> int:
        """Note in which millisecond it is; return the time, or the wheel's if that is later."""
        wheel = self._wheel
        # A clock that steps back is ignored: time stands still until it has caught up.
        now_ns = max(now_ns, wheel.current_ms * NS_PER_MS)
        now_ms = now_ns // NS_PER_MS
        if now_ms - wheel.current_ms >= wheel.interval_ms // 2:
            self._catch_up(now_ms)
        self._ceiling_ms = -(-now_ns // NS_PER_MS)
        self._ceiling_ns = self._ceiling_ms * NS_PER_MS
        self._floor_ns = self._ceiling_ns - NS_PER_MS
        return now_ns

    def _run_some(self, bucket: TimerTaskList, limit: int) -> int:
        """Run up to `limit` tasks of an open bucket, which leaves `_ready` when it is empty."""
        count = 0
        is_over = False
        # Looked up once, as in TimingWheel.cascade.
        is_compiled_form = cython.compiled
        task: TimerTask | None = None
        while count < limit:
            array = bucket.open_array()
            if array is None:
                is_over = True
                break
            items = array.items
            pending = array.pending
            first = array.first
            end = len(items)
            if end - first > limit - count:
                end = first + limit - count
            if not is_compiled_form:
                # As in TimingWheel.cascade. The copy goes at once: it would keep what is to go.
                len(items[first:end])
            # Around the loop, not in it: entering costs the compiled form as much as a task does.
            try:
                for index in range(first, end):
                    if is_compiled_form:
                        fetch_ahead(items, index)  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
                    task = items[index]
                    if task is None:
                        count -= 1
                        continue
                    items[index] = None
                    task._array = None
                    pending.count -= 1
                    if type(task) is ScheduledCall:
                        # ScheduledCall.run, written out.
                        call = task
                        callback = call.callback
                        if callback is not None:
                            args = call.args
                            call.callback = None
                            if args:
                                call.args = ()
                                callback(*args)
                                args = ()
                            else:
                                callback()
                            # Let go before the next task is looked for: whatever goes with this one
                            # may cancel that one.
                            callback = None
                            continue
                    task.run()
                    task = None
            except Exception:
                end = index + 1
                self._log_failure(task)
                task = callback = None
                args = ()
            count += end - first
            array.first = end
        # A task may have closed the timer, or advanced it by itself.
        if (is_over or not bucket) and self._ready and self._ready[0] is bucket:
            self._ready.popleft()
            # None ran where all had been cancelled.
            if count:
                self._note_lateness(bucket)
        return count

    def _note_lateness(self, bucket: TimerTaskList) -> None:
        if bucket.expiration_ms != NOT_SCHEDULED:
            late_ms = self.now_ms() - bucket.expiration_ms
            if late_ms > self.longest_lateness_ms:
                self.longest_lateness_ms = late_ms

    def _log_failure(self, task: TimerTask | None) -> None:
        logger.exception("a timer task failed: %r", task, extra={"action": "timer-task-failed"})

    def _place(self, task: TimerTask) -> None:
        """Put a task with an expiration where it waits, and tell the owner if it is the next."""
        wheel = self._wheel
        queue = wheel.queue
        earliest_ms = queue[0] if queue else _NO_LIMIT
        if wheel.add(task):
            is_earlier = queue[0] < earliest_ms
            earliest_ms = queue[0]
            if wheel.overflow is not None:
                self._upper_buckets = wheel.overflow._buckets
        elif self._cascading is not None or (queue and queue[0] <= wheel.current_ms):
            # The bucket of the current tick has not opened yet: those in it were there before.
            wheel.bucket_for(wheel.current_ms).add(task)
            is_earlier = False
        else:
            is_earlier = not self._due_now
            earliest_ms = wheel.current_ms
            self._due_now.add(task)
        if is_earlier and self.on_earlier is not None:
            self.on_earlier(earliest_ms)

    def _place_due_now(self) -> None:
        # Where a limit cut the advance short, buckets that are due earlier than these come first.
        if self._due_now:
            added = self._due_now
            self._due_now = TimerTaskList(self._wheel.pending)
            added.flush(self._place)

    def _open_due_now(self) -> None:
        # A new list for what is added from here on: a task without delay that adds itself again
        # runs once an advance, instead of for ever in this one.
        if self._due_now:
            self._ready.append(self._due_now)
            self._due_now = TimerTaskList(self._wheel.pending)

    def _open_bucket(self, now_ms: int, limit: int) -> int:
        """Open the earliest bucket that is due; return how many tasks moved, or -1 for none due."""
        if self._cascading is None:
            lowest = self._wheel
            queue = lowest.queue
            if not queue or queue[0] > now_ms:
                if now_ms >= lowest.current_ms + self._tick_ms:
                    self._advance_wheel(now_ms)
                return -1
            # Not asked whether a bucket there has a task: one that has none is done with as fast.
            start_ms = queue[0]
            self._advance_wheel(start_ms)
            # No bucket of an upper level begins at other times.
            if start_ms % self._span_ms == 0:
                self._cascading = self._take_upper(start_ms)
        if self._cascading is not None:
            wheel, bucket = self._cascading
            moved = wheel.cascade(bucket, limit)
            self.cascaded += moved
            if not bucket:
                self._cascading = None
            return moved
        bucket_now = lowest.take(start_ms)
        # Those of the upper levels have left.
        lowest.unqueue(start_ms)
        if bucket_now is not None:
            self._ready.append(bucket_now)
        return 0

    def _take_upper(self, start_ms: int) -> tuple[TimingWheel, TimerTaskList] | None:
        # The highest level first: what it moves down may fall into the next bucket to move.
        for wheel in reversed(self._wheel.levels()[1:]):
            bucket = wheel.take(start_ms)
            if bucket:
                return wheel, bucket
        return None

    def _catch_up(self, now_ms: int) -> None:
        # After idle time the wheel's own time is old; without this a short delay would land in an
        # upper level and take the way down through several buckets.
        next_ms = self._wheel.next_expiration_ms()
        if self._cascading is None and not self._ready:
            self._advance_wheel(now_ms if next_ms is None else min(now_ms, next_ms - 1))

    def _advance_wheel(self, time_ms: int) -> None:
        wheel = self._wheel
        wheel.advance_clock(time_ms)
        self._upper_from_ms = wheel.current_ms + wheel.interval_ms
        if wheel.overflow is not None:
            self._upper_buckets = wheel.overflow._buckets
