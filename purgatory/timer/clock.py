"""Where time comes from. The only module of the library that imports `time`."""

import time
from typing import Protocol

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """What a timer asks for the time.

    Deadlines are rounded up and the present is rounded down, by those who call; the clock itself
    does not round, so that nothing is ever early.
    """

    def now_ns(self) -> int:
        """Return nanoseconds of a monotonic clock: good for differences, meaningless as a date."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC: for records only, never for a deadline."""
        ...


class SystemClock:
    """The machine's clock. Stateless: any thread may ask it."""

    __slots__ = ()

    # Not `loop.time()`: uvloop caches that to the millisecond, which makes timers early.
    now_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // NS_PER_MS
