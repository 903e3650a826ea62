"""CPU time of a thread that works on something with breaks."""

from __future__ import annotations

import time


class CpuTime:
    """A stopwatch for the CPU time of one thread: it runs from `resume` to `pause`."""

    __slots__ = ("_from_ns", "_paused_ns")

    def __init__(self) -> None:
        """Begin paused."""
        self._from_ns = self._paused_ns = time.thread_time_ns()

    def resume(self) -> None:
        """Go on; what passed since `pause` does not count."""
        self._from_ns += time.thread_time_ns() - self._paused_ns

    def pause(self) -> None:
        """Stand still."""
        self._paused_ns = time.thread_time_ns()

    def lap_ns(self) -> int:
        """Return what has been counted since the last lap, or the beginning, and begin anew."""
        now_ns = time.thread_time_ns()
        lap_ns, self._from_ns = now_ns - self._from_ns, now_ns
        return lap_ns
