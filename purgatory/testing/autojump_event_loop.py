"""A clock under a test's control, and an event loop that never sleeps (trio: autojump)."""

from __future__ import annotations

import asyncio
import linecache
import queue
import re
import selectors
import sys
import threading
import time
from enum import Enum, auto
from types import FrameType
from typing import Any

from purgatory.timer.clock import NS_PER_MS, Seconds, SystemClock, seconds_of


class MockClock:
    """A clock that stands still until it is advanced."""

    __slots__ = ("_now_ns", "_wall_offset_ms", "is_of_loop")

    def __init__(self, start_ms: int = 0) -> None:
        """Start at `start_ms`, both in monotonic and in wall time."""
        self.is_of_loop = False
        """Only an AutojumpEventLoop moves it: a purgatory with it opens on no other loop."""
        self._now_ns = start_ms * NS_PER_MS
        self._wall_offset_ms = 0

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def wall_ms(self) -> int:
        """Return milliseconds since 1970: monotonic time plus the offset of `set_wall`."""
        return self._now_ns // NS_PER_MS + self._wall_offset_ms

    def advance(self, ms: float) -> None:
        """Advance by `ms` milliseconds; step back if it is negative, as faulty clocks do."""
        self.advance_ns(round(ms * NS_PER_MS))

    def advance_ns(self, ns: int) -> None:
        """Advance by `ns` nanoseconds."""
        self._now_ns += ns

    def set_wall(self, wall_ms: int) -> None:
        """Step the wall clock to `wall_ms`; monotonic time is unaffected."""
        self._wall_offset_ms = wall_ms - self._now_ns // NS_PER_MS


# What a thread executes that waits for work, in the standard library and in aiosqlite.
_WAITS = re.compile(r"\.(?:accept|acquire|control|get|join|poll|select|wait)\(")
# A queue is a local variable of the waiting frame, or of the one that called `get`; a thread that
# starts another one waits two calls deeper.
_FRAMES = 3
_HAS_CPU_TIME = hasattr(time, "pthread_getcpuclockid")
_START = threading.Thread.start.__code__
_Lock = type(threading.Lock())


class Activity(Enum):
    """What threads do."""

    WAITING = auto()
    """Each waits for work, and has not run since another look."""
    UNSURE = auto()
    """Each waits, but some have run since: one that has just got its work looks as if it waited."""
    WORKING = auto()


class WorkingThreads:
    """Tells if a thread that was started since this was created is at work.

    A thread waits for work if it executes a call such as `queue.get()`, `event.wait()` or
    `lock.acquire()`, and what it waits for has not come; anything else, such as `time.sleep()`, a
    query or computing, is work. CPython shows where each thread is (`sys._current_frames`).
    """

    def __init__(self) -> None:
        """Leave the threads of now aside: they serve something else."""
        self._others = set(threading.enumerate())
        # Those that the module `threading` did not start.
        self._foreign = set(sys._current_frames()) - {thread.ident for thread in self._others}
        # {thread: its CPU time at the last look}
        self._seen: dict[int, int] = {}
        # {thread: where it was when `ignore` was called}
        self._ignored: dict[int, tuple[int, int]] = {}

    def activity(self) -> Activity:
        """Return what the threads do now; call it again a moment later if that is UNSURE."""
        frames = {
            ident: frame
            for ident, frame in self._frames().items()
            if self._ignored.get(ident) != _place(frame)
        }
        if not frames:
            return Activity.WAITING
        if not all(map(_waits_for_work, frames.values())):
            self._seen.clear()
            return Activity.WORKING
        before, self._seen = self._seen, {ident: _cpu_ns(ident) for ident in frames}
        return Activity.WAITING if self._seen == before else Activity.UNSURE

    def ignore(self) -> None:
        """Ignore each thread that is at work until it is at work elsewhere."""
        self._ignored = {ident: _place(frame) for ident, frame in self._frames().items()}

    def begin(self) -> None:
        """Forget what is not known without the CPU time of threads: some have run meanwhile."""
        if not _HAS_CPU_TIME:
            self._seen.clear()

    def _frames(self) -> dict[int, FrameType]:
        # By idents, as a thread that ends is not enumerated any more; these are used again.
        enumerated = threading.enumerate()
        others = {thread.ident for thread in enumerated if thread in self._others} | self._foreign
        others.add(threading.get_ident())
        frames = sys._current_frames().items()
        return {ident: frame for ident, frame in frames if ident not in others}


def _cpu_ns(ident: int) -> int:
    """Return the CPU time of a thread; 0 if it has just ended, and on macOS."""
    if not _HAS_CPU_TIME:
        return 0
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(ident))
    except OSError:
        return 0


def _place(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _waits_for_work(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if not _WAITS.search(line):
        return False
    current: FrameType | None = frame
    for _ in range(_FRAMES):
        if current is None:
            break
        if current.f_code is _START or any(map(_has_come, current.f_locals.values())):
            return False
        current = current.f_back
    return True


def _has_come(value: Any) -> bool:
    """Return True iff a thread that waits with this local variable is about to be woken."""
    if isinstance(value, queue.Queue):
        # Without its lock, which the thread may hold.
        return bool(value._qsize())
    if isinstance(value, queue.SimpleQueue):
        return not value.empty()
    if isinstance(value, threading.Thread):
        # Of Thread.join, since Python 3.13.
        handle = getattr(value, "_handle", None)
        return handle is not None and bool(handle.is_done())
    # Of Condition.wait, until `notify`; of Thread.join, until Python 3.12.
    return isinstance(value, _Lock) and not value.locked()


# Real seconds between two looks at threads that are at work.
_PAUSE_S = 0.001
# Jumps in one run: those of an idle worker in 47 days, which take 10 to 20 s of real time.
_MAX_JUMPS = 1_000_000
_NS_PER_DAY = 86_400_000_000_000
# Looks in a row that find threads waiting which have run in between: they wait with short timeouts.
_MAX_UNSURE = 5


class DeadlockError(RuntimeError):
    """Every task waits, and no event can resume one, or none has for too many jumps."""


class _AutojumpSelector(selectors.DefaultSelector):
    """Polls files in real time; instead of waiting for a timer it advances the clock."""

    def __init__(self, clock: MockClock, patience: float, max_jumps: int) -> None:
        super().__init__()
        self._clock = clock
        self._patience = patience
        self._max_jumps = max_jumps
        self.begin()
        self._threads = WorkingThreads()

    def begin(self) -> None:
        """Count the jumps of a new run."""
        self._jumps = 0
        self._begun_ns = self._clock.now_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # Only another thread or a peer can wake the loop now: wait for them in real time.
            events = super().select(self._patience)
            if not events:
                raise DeadlockError(
                    f"nothing happened in {self._patience:g} s, and no timer is armed: a wake-up "
                    "was lost, or a task waits for something that never happens"
                )
            return events
        events = self._events_of_threads()
        if events:
            return events
        self._count_jump()
        # Rounded up: otherwise the loop would select again for nearly zero seconds.
        self._clock.advance_ns(max(1, -int(-timeout * 1_000_000_000 // 1)))
        return events

    def _count_jump(self) -> None:
        self._jumps += 1
        if self._jumps > self._max_jumps:
            days = (self._clock.now_ns() - self._begun_ns) / _NS_PER_DAY
            raise DeadlockError(
                f"the clock jumped {self._max_jumps} times, over {days:.1f} days, and the test has "
                "not ended: it may wait for something that never happens, while a worker polls its "
                "store; bound the wait, as with asyncio.timeout(3600), which takes no real time, "
                "or allow more with AutojumpEventLoop(max_jumps=...)"
            )

    def _events_of_threads(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time while threads are at work; return what has happened."""
        real, deadline, unsure = SystemClock(), None, 0
        self._threads.begin()
        while (activity := self._threads.activity()) is not Activity.WAITING:
            unsure = unsure + 1 if activity is Activity.UNSURE else 0
            if unsure > _MAX_UNSURE:
                break
            events = super().select(_PAUSE_S)
            if events:
                return events
            if deadline is None:
                deadline = real.now_ns() + round(self._patience * 1_000_000_000)
            elif real.now_ns() >= deadline:
                self._threads.ignore()
                break
        return []


def current_clock() -> MockClock:
    """Return the clock of the running AutojumpEventLoop; raise RuntimeError if another one runs."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, AutojumpEventLoop):
        raise RuntimeError(
            f"{loop!r} has no clock of its own: run the test on an AutojumpEventLoop"
        )
    return loop.clock


class AutojumpEventLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on a MockClock, which jumps to the next timer when it is idle.

    The clock stands still while a thread is at work that began after the loop: a call of
    `asyncio.to_thread`, a handler or an endpoint that is a plain function, a query of aiosqlite.
    Real sockets work, but their time is not virtual: while only timers are pending, the clock jumps
    without waiting for them. The end of the loop waits for its threads.
    """

    def __init__(
        self,
        clock: MockClock | None = None,
        *,
        patience: Seconds = 5.0,
        max_jumps: int = _MAX_JUMPS,
    ) -> None:
        """Run on `clock`; wait `patience` real seconds for other threads.

        Then the clock moves all the same; if no timer is armed, DeadlockError is raised. It is also
        raised after `max_jumps` in one run: a worker of jobs polls its store for ever, so that
        there always is a timer.
        """
        # Before super().__init__, which reads the time.
        self.clock: MockClock = MockClock() if clock is None else clock
        self._jumping = _AutojumpSelector(self.clock, seconds_of(patience), max_jumps)
        super().__init__(self._jumping)

    def run_forever(self) -> None:
        """Run until `stop`, as each `run_until_complete` does."""
        self._jumping.begin()
        super().run_forever()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.clock.now_ns() / 1_000_000_000

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait in real time for the threads of `run_in_executor` to end.

        `timeout`, which Python 3.12 and later pass, is virtual time and would expire immediately.
        """
        await super().shutdown_default_executor()
