"""Advice on the tick and the size of the timing wheel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from purgatory.pipeline.console import counted
from purgatory.pipeline.wait_columns import Integers

TICKS_MS = (1, 2, 5, 10, 20, 50, 100)
WHEEL_SIZES = (20, 64, 128, 256, 512, 1024)
DEFAULT = (1, 256)
"""The default tick and size of a purgatory."""

TIMER_BYTES = 75
"""A pending timer, see docs/reference/measurements.md."""
BUCKET_BYTES = 400
"""A bucket that has or had a timer, with its entry in the queue; measured."""
SLOT_BYTES = 8
"""A slot of a level, with or without a bucket."""

LEAST_TIMERS = 1_000
"""With fewer the number of moves means nothing."""
# Moving a timer once costs about a third of adding it: a gain below a twentieth of a move for each
# timer cannot be measured.
_WORTHWHILE = 0.05


@dataclass(frozen=True, slots=True)
class Timer:
    """The start, expiration and end of a timer; ms of the wall clock."""

    start_ms: int
    expiration_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The costs that a wheel of this tick and size would have had."""

    tick_ms: int
    """The maximum lateness of a timer, apart from the event loop's."""
    wheel_size: int
    levels: int
    cascades: float
    """How often a timer moves to a finer bucket before it ends, on average."""
    cascades_low: float
    cascades_high: float
    bytes: int
    """At the peak."""


@dataclass(frozen=True, slots=True)
class GeometryAdvice:
    """The advised wheel, and the costs of the others."""

    advised: Geometry | None
    default: Geometry | None
    candidates: tuple[Geometry, ...]
    timers: int
    """The size of the sample."""
    peak_parked: int
    is_thin: bool
    reason: str


def levels_and_cascades(
    timers: Integers, tick_ms: int, wheel_size: int
) -> tuple[Integers, Integers]:
    """Return the level in which each timer begins, and how often it moves before it ends.

    `timers` has the rows of `columns_of`. As in `TimingWheel`: a timer goes to the finest level
    that reaches its expiration, from that level's current time, and moves down one level when its
    bucket opens, at the start of the bucket's range. A level's current time is the time rounded
    down to its own tick.
    """
    start_ms, expiration_ms, end_ms = timers
    levels, cascades = np.zeros_like(start_ms), np.zeros_like(start_ms)
    while (is_beyond := expiration_ms >= (start_ms // tick_ms + wheel_size) * tick_ms).any():
        tick_ms *= wheel_size
        levels += is_beyond
        cascades += is_beyond & (expiration_ms // tick_ms * tick_ms < end_ms)
    return levels, cascades


def columns_of(timers: Sequence[Timer]) -> Integers:
    """Return the starts, expirations and ends of `timers`, as rows."""
    listed = [(timer.start_ms, timer.expiration_ms, timer.end_ms) for timer in timers]
    return np.array(listed, np.int64).reshape(-1, 3).T


def measure(timers: Integers, tick_ms: int, wheel_size: int, peak_parked: int) -> Geometry:
    """Return the costs of a wheel for the `columns_of` timers, with `peak_parked` at once."""
    start_ms, expiration_ms, end_ms = timers
    # SystemTimer rounds a deadline up to a tick, so that no timer is early.
    rounded = np.stack([start_ms, -(-expiration_ms // tick_ms) * tick_ms, end_ms])
    found, moves = levels_and_cascades(rounded, tick_ms, wheel_size)
    count, per_level = len(found), np.bincount(found).tolist()
    per_moves = np.bincount(moves).tolist()
    mean = sum(moved * some for moved, some in enumerate(per_moves)) / count
    # Thousands of timers: their mean is approximately normal.
    squares = sum((moved - mean) ** 2 * some for moved, some in enumerate(per_moves))
    spread = 1.96 * (squares / count / count) ** 0.5
    buckets = sum(min(wheel_size, round(peak_parked * some / count)) for some in per_level)
    levels = len(per_level)
    return Geometry(
        tick_ms=tick_ms,
        wheel_size=wheel_size,
        levels=levels,
        cascades=mean,
        cascades_low=max(0.0, mean - spread),
        cascades_high=mean + spread,
        bytes=peak_parked * TIMER_BYTES + buckets * BUCKET_BYTES + levels * wheel_size * SLOT_BYTES,
    )


def advise_geometry(
    timers: Sequence[Timer], peak_parked: int, max_tick_ms: int = 1
) -> GeometryAdvice:
    """Return the wheel with the fewest moves, of those with a tick of at most `max_tick_ms`.

    Of wheels with equally few it is the one that takes the least memory. The default is kept if it
    is as good: the difference cannot be measured, or the 95 % intervals overlap. `timers` are a
    uniform sample.
    """
    if len(timers) < LEAST_TIMERS:
        return GeometryAdvice(
            advised=None,
            default=None,
            candidates=(),
            timers=len(timers),
            peak_parked=peak_parked,
            is_thin=True,
            reason=f"Too little data: {counted(len(timers), 'timer')}, and at least "
            f"{LEAST_TIMERS:,} are needed. Keep the default.",
        )
    columns = columns_of(timers)
    found = tuple(
        measure(columns, tick_ms, size, peak_parked) for tick_ms in TICKS_MS for size in WHEEL_SIZES
    )
    default = next(wheel for wheel in found if (wheel.tick_ms, wheel.wheel_size) == DEFAULT)
    allowed = [wheel for wheel in found if wheel.tick_ms <= max_tick_ms]
    fewest = min(allowed, key=lambda wheel: (wheel.cascades, wheel.bytes))
    advised = default if _is_as_good(default, fewest) else fewest
    return GeometryAdvice(
        advised=advised,
        default=default,
        candidates=found,
        timers=len(timers),
        peak_parked=peak_parked,
        is_thin=False,
        reason=_reason(fewest, default, max_tick_ms),
    )


def _is_as_good(default: Geometry, fewest: Geometry) -> bool:
    saved = default.cascades - fewest.cascades
    return saved <= _WORTHWHILE or default.cascades_low <= fewest.cascades_high


def _reason(advised: Geometry, default: Geometry, max_tick_ms: int) -> str:
    if default.cascades - advised.cascades <= _WORTHWHILE:
        return (
            f"Keep the default: a timer moves {default.cascades:.2f} times, and no wheel with a "
            f"tick of at most {max_tick_ms} ms saves more than {_WORTHWHILE} moves."
        )
    if _is_as_good(default, advised):
        return (
            f"Keep the default: a timer moves {default.cascades:.2f} times, and the "
            f"{advised.cascades:.2f} with {advised.wheel_size:,} buckets of {advised.tick_ms} ms "
            "may be chance, since the 95 % intervals overlap."
        )
    return (
        f"With {advised.wheel_size:,} buckets of {advised.tick_ms} ms, rather than "
        f"{default.wheel_size:,} of {default.tick_ms} ms, a timer would move "
        f"{advised.cascades:.2f} times rather than {default.cascades:.2f}, and "
        f"{advised.bytes / 1024:,.0f} KiB would be taken at the peak rather than "
        f"{default.bytes / 1024:,.0f}; a tick of up to {max_tick_ms} ms was allowed."
    )
