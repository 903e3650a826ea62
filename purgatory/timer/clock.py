"""Clocks. The only module of the library that imports `time`."""

import time
from typing import Protocol

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """The source of time of a timer.

    The clock does not round. Its callers round deadlines up and the current time down, so that
    nothing is early.
    """

    def now_ns(self) -> int:
        """Return nanoseconds of a monotonic clock: only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC: for records, never for deadlines."""
        ...


class SystemClock:
    """The machine's clock. Stateless: any thread may read it."""

    __slots__ = ()

    # Not `loop.time()`: uvloop caches that to the millisecond, which makes timers early.
    now_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // NS_PER_MS
