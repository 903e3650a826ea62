"""The timer: a timing wheel with a clock (Kafka: SystemTimer)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

try:
    # Cython requires this exact import; without Cython, the stand-in's `compiled` is False.
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
    TimerTaskList,
    raise_invalid_delay,
)
from purgatory.timer.wheel import TimingWheel

logger = logging.getLogger("purgatory.timer")

# Second names, which the .pxd declares as C integers.
_MAX_DELAY_MS = MAX_DELAY_MS
_ARRAY_SIZE = ARRAY_SIZE
_NO_LIMIT: Final = 2**62

is_compiled: Final[bool] = cython.compiled
"""True iff the core runs compiled, not as plain Python."""

_expiration_ms = attrgetter("expiration_ms")
_new_task = ScheduledCall.__new__


class SystemTimer:
    """Runs tasks when their delays have passed: never early, less than one tick late.

    The owner calls `advance_clock` repeatedly, ideally at `next_expiration_ms()`; due tasks run in
    that call, on its thread. All methods must be called on one thread: there are no locks. `add`
    takes O(levels), `cancel` O(1), and an empty tick costs nothing.

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
        """Create an empty timer; raise ValueError for a tick below 1 or fewer than 2 buckets."""
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now_ns = self._clock.now_ns
        # The compiled form reads the system's clock without a call of Python.
        self._is_system: bool = type(self._clock) is SystemClock
        self._wheel = TimingWheel(tick_ms, wheel_size, self._now_ns() // NS_PER_MS)
        # The millisecond of the last reading of the clock: its end in ms, and both ends in ns.
        self._ceiling_ms: int = 0
        self._ceiling_ns: int = 0
        self._floor_ns: int = 0
        # Copies of attributes of the first two levels, for the fast path of `add`.
        self._tick_ms: int = tick_ms
        self._wheel_size: int = wheel_size
        self._span_ms: int = self._wheel.interval_ms
        self._buckets = self._wheel._buckets
        self._upper_buckets: list[TimerTaskList | None] = [None] * wheel_size
        self._upper_from_ms: int = 0
        # Open buckets whose tasks run next: more than one only after a limit interrupted a run.
        self._ready: deque[TimerTaskList] = deque()
        # Tasks without delay, for the next advance.
        self._due_now = TimerTaskList(self._wheel.pending)
        # A level, and a bucket taken from it whose cascade a limit interrupted.
        self._cascading: tuple[TimingWheel, TimerTaskList] | None = None
        self._is_advancing: bool = False
        # Called with the time of a new bucket that is the earliest, so that an owner that sleeps
        # until `next_expiration_ms()` can wake up sooner.
        self.on_earlier: Callable[[int], object] | None = None
        # The maximum delay from a bucket's time to the end of its last task.
        self.longest_lateness_ms: int = 0
        # The number of moves of tasks to a lower level.
        self.cascaded: int = 0
        self._advance_wheel(self._wheel.current_ms)

    def __len__(self) -> int:
        """Return the exact number of pending tasks, in O(1)."""
        return self._wheel.pending.count

    def __bool__(self) -> bool:
        """True: a timer without tasks is still a timer."""
        return True

    def __del__(self) -> None:
        """Release pending tasks immediately: their links are cycles."""
        if cython.compiled and is_exiting():  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
            # The process exits: functions that this would call may be gone.
            return
        try:
            is_made = self._due_now is not None
        except AttributeError:
            # __init__ raised; when compiled, the attribute is None instead.
            return
        if is_made:
            for task in self.close():
                task.cancel()

    @property
    def clock(self) -> Clock:
        """The clock of this timer."""
        return self._clock

    @property
    def wheel(self) -> TimingWheel:
        """The lowest wheel, for statistics."""
        return self._wheel

    def now_ms(self) -> int:
        """Return the time in whole milliseconds, rounded down; not before the wheel's time."""
        now_ms = self._now_ns() // NS_PER_MS
        reached_ms = self._wheel.current_ms
        # In plain Python, a call of max() costs half as much as a task.
        return now_ms if now_ms > reached_ms else reached_ms

    def call_later(
        self, delay_ms: int, callback: Callable[..., object], *args: Any
    ) -> ScheduledCall:
        """Call `callback(*args)` in `delay_ms` whole milliseconds; return a handle to cancel it.

        Like `loop.call_later`, which takes seconds. Raises what `TimerTask` and `add` raise.
        """
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            raise_invalid_delay(delay_ms)
        if cython.compiled:
            return self._new_call(delay_ms, callback, args)
        else:
            # The constructor and `add`, inlined: the two calls are a quarter of the cost.
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
        """Schedule `task` for `task.delay_ms` from now; reschedule it if it is pending.

        The deadline is rounded up to a tick, so that no task is early. A task with a delay of zero
        or less is due at the next advance; `add` itself runs no task.
        Raises ValueError for a delay above MAX_DELAY_MS.
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
            # In two steps: plain Python takes twice as long to call the value of a slot in one.
            read_ns = self._now_ns
            now_ns = read_ns()
        if not self._floor_ns < now_ns <= self._ceiling_ns:
            self._settle_clock(now_ns)
        # Rounding the time up to a millisecond and then the deadline up to a tick is the same as
        # rounding once.
        expiration_ms = self._ceiling_ms + delay_ms
        tick_ms = self._tick_ms
        if tick_ms != 1:
            # Division, rounded up.
            expiration_ms = -(-expiration_ms // tick_ms) * tick_ms
        task.expiration_ms = expiration_ms
        # The fast path for most tasks: into a bucket that is queued already, on one of the first
        # two levels. Inlined, because in plain Python a call costs as much as all of it.
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
        # TaskArray.append, inlined: in plain Python its call is 6 % of the instructions of `add`.
        items.append(task)
        task._array = array
        task._index = index
        array.pending.count += 1

    def advance_clock(self, limit: int | None = None) -> int:
        """Run the tasks that are due now; return how many ran.

        `limit` bounds the work of this call, in tasks run or moved down a level. The remaining
        tasks stay due: `next_expiration_ms()` returns now, and the next call continues.
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
        """Return the clock time at which the next bucket opens; None iff no task is pending.

        If it is at or before now, `advance_clock` has work. For a distant task it is the time when
        its bucket moves down a level, which is earlier than its deadline.
        """
        is_moving = self._cascading is not None and bool(self._cascading[1])
        if is_moving or self._due_now or any(self._ready):
            return self._wheel.current_ms
        return self._wheel.next_expiration_ms()

    def close(self) -> list[TimerTask]:
        """Remove every task without running it; return the tasks in order of deadline."""
        tasks: list[TimerTask] = []
        if self._cascading is not None:
            # Complete the cascade, which keeps the order of arrival.
            wheel, bucket = self._cascading
            wheel.cascade(bucket, _NO_LIMIT)
            self._cascading = None
        for task_list in self._ready:
            task_list.flush(tasks.append)
        self._ready.clear()
        tasks += self._wheel.clear()
        # Tasks without delay are last; the sort is stable, so that tasks of a tick stay in order.
        self._due_now.flush(tasks.append)
        return sorted(tasks, key=_expiration_ms)

    def _new_call(
        self, delay_ms: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> ScheduledCall:
        # Without calling the constructor, which takes as long as all the rest when compiled.
        call = ScheduledCall.__new__(ScheduledCall)
        call.delay_ms = delay_ms
        call.callback = callback
        call.args = args
        self.add(call)
        return call

    def _add_at_once(self, task: TimerTask) -> None:
        """Add a task without delay; raise ValueError for a delay above the maximum."""
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
        """Store the current millisecond; return the time, or the wheel's if that is later."""
        wheel = self._wheel
        # A clock that steps back is ignored: time stands still until the clock has caught up.
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
        # In a local variable, as in TimingWheel.cascade.
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
                # As in TimingWheel.cascade. Not stored: the copy would keep the tasks alive.
                len(items[first:end])
            # Outside the loop: when compiled, entering `try` costs as much as a task.
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
                        # ScheduledCall.run, inlined.
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
                            # Release it before reading the next task: an object that is freed with
                            # this callback may cancel that task.
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
            # No task ran if all had been cancelled.
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
        """Add a task with an expiration to its bucket; call `on_earlier` if it is the earliest."""
        wheel = self._wheel
        queue = wheel.queue
        earliest_ms = queue[0] if queue else _NO_LIMIT
        if wheel.add(task):
            is_earlier = queue[0] < earliest_ms
            earliest_ms = queue[0]
            if wheel.overflow is not None:
                self._upper_buckets = wheel.overflow._buckets
        elif self._cascading is not None or (queue and queue[0] <= wheel.current_ms):
            # The bucket of the current tick is not open yet: its tasks were added before this one.
            wheel.bucket_for(wheel.current_ms).add(task)
            is_earlier = False
        else:
            is_earlier = not self._due_now
            earliest_ms = wheel.current_ms
            self._due_now.add(task)
        if is_earlier and self.on_earlier is not None:
            self.on_earlier(earliest_ms)

    def _place_due_now(self) -> None:
        # If a limit interrupted the advance, earlier buckets are due before these tasks.
        if self._due_now:
            added = self._due_now
            self._due_now = TimerTaskList(self._wheel.pending)
            added.flush(self._place)

    def _open_due_now(self) -> None:
        # Tasks that are added from here on go to a new list: a task without delay that adds itself
        # again runs once in each advance, not endlessly in this one.
        if self._due_now:
            self._ready.append(self._due_now)
            self._due_now = TimerTaskList(self._wheel.pending)

    def _open_bucket(self, now_ms: int, limit: int) -> int:
        """Open the earliest due bucket; return how many tasks moved, or -1 if no bucket is due."""
        if self._cascading is None:
            lowest = self._wheel
            queue = lowest.queue
            if not queue or queue[0] > now_ms:
                if now_ms >= lowest.current_ms + self._tick_ms:
                    self._advance_wheel(now_ms)
                return -1
            # The bucket may be empty: to open it is as fast as to check it.
            start_ms = queue[0]
            self._advance_wheel(start_ms)
            # Buckets of upper levels start only at multiples of the span.
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
        # The buckets of the upper levels have been taken.
        lowest.unqueue(start_ms)
        if bucket_now is not None:
            self._ready.append(bucket_now)
        return 0

    def _take_upper(self, start_ms: int) -> tuple[TimingWheel, TimerTaskList] | None:
        # The highest level first: its tasks may move into the next bucket to take.
        for wheel in reversed(self._wheel.levels()[1:]):
            bucket = wheel.take(start_ms)
            if bucket:
                return wheel, bucket
        return None

    def _catch_up(self, now_ms: int) -> None:
        # After an idle period the wheel's time is old; without this, a task with a short delay
        # would go to an upper level and cascade through several buckets.
        next_ms = self._wheel.next_expiration_ms()
        if self._cascading is None and not self._ready:
            self._advance_wheel(now_ms if next_ms is None else min(now_ms, next_ms - 1))

    def _advance_wheel(self, time_ms: int) -> None:
        wheel = self._wheel
        wheel.advance_clock(time_ms)
        self._upper_from_ms = wheel.current_ms + wheel.interval_ms
        if wheel.overflow is not None:
            self._upper_buckets = wheel.overflow._buckets
