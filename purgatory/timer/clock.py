"""Clocks, and durations as callers give them. The only module that imports `time`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, overload

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000 * NS_PER_MS


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


Seconds: TypeAlias = float | int | timedelta
"""A duration: a number of seconds, or a timedelta. Parameters whose names end in a unit, such as
`lease_ms`, take a number of that unit instead."""


@overload
def seconds_of(duration: Seconds) -> float: ...


@overload
def seconds_of(duration: Seconds | None) -> float | None: ...


def seconds_of(duration: Seconds | None) -> float | None:
    """Return a duration in seconds. What is no timedelta is returned as it is, to be checked."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


class SecondsField:
    """A field of a dataclass: set as `Seconds`, and read as a number of them.

    A descriptor, whose two types type checkers know; slots would replace it.
    """

    _name: str

    def __init__(self, default: float) -> None:
        """Be `default` seconds unless it is given."""
        self._default: Final = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, settings: Any, owner: type) -> float:
        seconds: float = self._default if settings is None else settings.__dict__[self._name]
        return seconds

    def __set__(self, settings: Any, duration: Seconds) -> None:
        settings.__dict__[self._name] = seconds_of(duration)
