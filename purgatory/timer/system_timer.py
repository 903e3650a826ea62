"""The timer: a timing wheel, and the time (Kafka: SystemTimer)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock
from purgatory.timer.task import NOT_SCHEDULED, TimerTask
from purgatory.timer.task_list import TimerTaskList
from purgatory.timer.wheel import TimingWheel

logger = logging.getLogger("purgatory.timer")

# 100 years. Sums with it stay far from the end of 64-bit nanoseconds (292 years), where Kafka's
# arithmetic overflows and runs the task at once.
MAX_DELAY_MS: Final = 100 * 366 * 24 * 3600 * 1000

_NO_LIMIT: Final = 2**62


class SystemTimer:
    """Runs tasks when their delays have passed: never early, less than one tick late.

    Whoever owns the timer calls `advance_clock` from time to time, best when `next_expiration_ms()`
    has come; due tasks run inside that call, on its thread. No method may be called from two
    threads: there are no locks. Adding costs O(levels), cancelling O(1), an empty tick nothing.

    Due tasks run in order of deadline, tick by tick, and within a tick in the order in which they
    were added.
    """

    __slots__ = (
        "_advancing",
        "_cascading",
        "_clock",
        "_due_now",
        "_last_ns",
        "_now_ns",
        "_ready",
        "_tick_ns",
        "_wheel",
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
        self._last_ns: int = self._now_ns()
        self._tick_ns: int = tick_ms * NS_PER_MS
        self._wheel = TimingWheel(tick_ms, wheel_size, self._last_ns // NS_PER_MS)
        # Called with the time of a bucket that is new and the earliest: the moment for an owner
        # that sleeps until `next_expiration_ms()` to sleep for less.
        self.on_earlier: Callable[[int], object] | None = None
        # How long after its time the last task of a bucket ran, at the worst.
        self.longest_lateness_ms: int = 0
        # Buckets that have opened, waiting to run: more than one only where a limit cut it short.
        self._ready: deque[TimerTaskList] = deque()
        # The tasks without delay, for the next advance.
        self._due_now = TimerTaskList(self._wheel.counter)
        # A bucket of an upper level that a limit left half moved, and that level.
        self._cascading: tuple[TimingWheel, TimerTaskList] | None = None
        self._advancing: bool = False

    def __len__(self) -> int:
        """Return how many tasks are pending, exactly, in O(1)."""
        return self._wheel.counter.value

    def __bool__(self) -> bool:
        """True: a timer without tasks is still a timer."""
        return True

    @property
    def clock(self) -> Clock:
        """The clock that this timer goes by."""
        return self._clock

    @property
    def wheel(self) -> TimingWheel:
        """The lowest wheel, for statistics."""
        return self._wheel

    def now_ms(self) -> int:
        """Return the clock's time in whole milliseconds, rounded down, never stepping back."""
        return self._read_clock() // NS_PER_MS

    def add(self, task: TimerTask) -> None:
        """Schedule `task` for `task.delay_ms` from now, or again if it is pending already.

        The deadline is rounded up to a tick, so that nothing is early. A delay of zero or less is
        due at the next advance; nothing ever runs inside `add`.
        Raises ValueError for a delay beyond MAX_DELAY_MS.
        """
        delay_ms = task.delay_ms
        if delay_ms > MAX_DELAY_MS:
            raise ValueError(
                f"delay_ms is {delay_ms}, beyond the limit of {MAX_DELAY_MS} (100 years): "
                "keep such a task elsewhere, or leave it without a deadline"
            )
        task_list = task._list
        if task_list is not None:
            task_list.remove(task)
        wheel = self._wheel
        now_ns = self._read_clock()
        if delay_ms > 0:
            # Minus floor division of the negative is division rounded up.
            ticks = -(-(now_ns + delay_ms * NS_PER_MS) // self._tick_ns)
        else:
            ticks = now_ns // self._tick_ns
        task.expiration_ms = ticks * wheel.tick_ms
        if now_ns - wheel.current_ms * NS_PER_MS >= wheel.interval_ms * (NS_PER_MS // 2):
            self._catch_up(now_ns // NS_PER_MS)
        if delay_ms <= 0 and self._advancing:
            self._due_now.add(task)
        else:
            self._place(task)

    def advance_clock(self, limit: int | None = None) -> int:
        """Run what is due by now and return how many tasks ran.

        `limit` bounds the work of this call, in tasks run or moved down a level; what is left stays
        due, `next_expiration_ms()` says so, and the next call goes on with it.
        """
        budget = _NO_LIMIT if limit is None else limit
        now_ms = self.now_ms()
        ran = 0
        self._open_due_now()
        was_advancing, self._advancing = self._advancing, True
        try:
            while budget > 0:
                task = self._next_ready()
                if task is not None:
                    ran += 1
                    budget -= 1
                    self._run(task)
                    continue
                moved = self._open_bucket(now_ms, budget)
                if moved < 0:
                    break
                budget -= moved
        finally:
            self._advancing = was_advancing
            self._place_due_now()
        return ran

    def next_expiration_ms(self) -> int | None:
        """Return the clock time of the next bucket to open; None iff no task is pending.

        A time at or before now means that `advance_clock` has work. For a task far away it is the
        time when its bucket moves down a level, which is earlier than its deadline.
        """
        if self._cascading is not None or self._due_now or any(self._ready):
            return self._wheel.current_ms
        return self._wheel.next_expiration_ms()

    def close(self) -> list[TimerTask]:
        """Take out every task, without running it, and return them in the order they were due."""
        tasks: list[TimerTask] = []
        lists = [*self._ready, self._due_now]
        if self._cascading is not None:
            lists.append(self._cascading[1])
        for task_list in lists:
            task_list.flush(tasks.append)
        self._ready.clear()
        self._cascading = None
        return tasks + self._wheel.clear()

    def _read_clock(self) -> int:
        now_ns = self._now_ns()
        # A clock that steps back is ignored: time stands still until it has caught up.
        if now_ns < self._last_ns:
            return self._last_ns
        self._last_ns = now_ns
        return now_ns

    def _run(self, task: TimerTask) -> None:
        try:
            task.run()
        except Exception:
            logger.exception("a timer task failed: %r", task, extra={"action": "timer-task-failed"})

    def _next_ready(self) -> TimerTask | None:
        ready = self._ready
        while ready:
            bucket = ready[0]
            task = bucket.pop_first()
            if task is not None:
                return task
            ready.popleft()
            if bucket.expiration_ms != NOT_SCHEDULED:
                late_ms = self.now_ms() - bucket.expiration_ms
                self.longest_lateness_ms = max(self.longest_lateness_ms, late_ms)
        return None

    def _place(self, task: TimerTask) -> None:
        """Put a task with an expiration where it waits, and tell the owner if it is the next."""
        wheel = self._wheel
        queue = wheel.queue
        earliest_ms = queue[0] if queue else _NO_LIMIT
        if wheel.add(task):
            is_earlier = queue[0] < earliest_ms
        elif self._cascading is not None:
            # The bucket of the current tick has not opened yet: those in it were there before.
            wheel.bucket_for(task.expiration_ms).add(task)
            is_earlier = False
        else:
            is_earlier = not self._due_now
            self._due_now.add(task)
        if is_earlier and self.on_earlier is not None:
            self.on_earlier(queue[0] if queue else wheel.current_ms)

    def _place_due_now(self) -> None:
        # Where a limit cut the advance short, buckets that are due earlier than these come first.
        if self._due_now:
            added = self._due_now
            self._due_now = TimerTaskList(self._wheel.counter)
            added.flush(self._place)

    def _open_due_now(self) -> None:
        # A new list for what is added from here on: a task without delay that adds itself again
        # runs once an advance, instead of for ever in this one.
        if self._due_now:
            self._ready.append(self._due_now)
            self._due_now = TimerTaskList(self._wheel.counter)

    def _open_bucket(self, now_ms: int, limit: int) -> int:
        """Open the earliest bucket that is due; return how many tasks moved, or -1 for none due."""
        if self._cascading is None:
            start_ms = self._wheel.next_expiration_ms()
            if start_ms is None or start_ms > now_ms:
                self._wheel.advance_clock(now_ms)
                return -1
            self._wheel.advance_clock(start_ms)
            self._cascading = self._take_upper(start_ms)
        if self._cascading is not None:
            wheel, bucket = self._cascading
            moved = wheel.cascade(bucket, limit)
            if not bucket:
                self._cascading = None
            return moved
        start_ms = self._wheel.queue[0]
        bucket_now = self._wheel.take(start_ms)
        self._wheel.drop(start_ms)
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
            self._wheel.advance_clock(now_ms if next_ms is None else min(now_ms, next_ms - 1))
