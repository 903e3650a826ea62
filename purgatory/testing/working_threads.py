"""Threads that are at work, for an event loop that must not move its clock meanwhile."""

from __future__ import annotations

import linecache
import queue
import re
import sys
import threading
import time
from enum import Enum, auto
from types import FrameType
from typing import Any

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
