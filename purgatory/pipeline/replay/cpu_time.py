"""CPU time of a thread that works on something with pauses."""

from __future__ import annotations

import time


class CpuTime:
    """A stopwatch for the CPU time of one thread: it runs from `resume` to `pause`."""

    __slots__ = ("_from_ns", "_paused_ns")

    def __init__(self) -> None:
        """Begin paused."""
        self._from_ns = self._paused_ns = time.thread_time_ns()

    def resume(self) -> None:
        """Continue; time since `pause` does not count."""
        self._from_ns += time.thread_time_ns() - self._paused_ns

    def pause(self) -> None:
        """Stop counting."""
        self._paused_ns = time.thread_time_ns()

    def lap_ns(self) -> int:
        """Return the time counted since the last lap, or the start, and begin a new lap."""
        now_ns = time.thread_time_ns()
        lap_ns, self._from_ns = now_ns - self._from_ns, now_ns
        return lap_ns
