"""An event loop and a clock of real time that leaps when told to, for a real server."""

from __future__ import annotations

import asyncio

from purgatory.timer import SystemClock


class LeapingClock:
    """The system's clock, and what it has leapt since."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.leapt_s = 0
        self.wall_leapt_s = 0

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._system.now_ns() + self.leapt_s * 1_000_000_000

    def wall_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self._system.wall_ms() + self.wall_leapt_s * 1000


# Both are made far from each other: the purgatory in the test, the loop by uvicorn.
clock = LeapingClock()


class LeapingEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of `clock`."""

    def time(self) -> float:
        """Return the time in seconds."""
        return clock.now_ns() / 1_000_000_000
