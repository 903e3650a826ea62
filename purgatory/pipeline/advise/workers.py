"""Advice on the number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from purgatory.pipeline.console import counted, figure, percent
from purgatory.pipeline.rollups.wait_tables import Floats, Integers
from purgatory.pipeline.statistics import CONFIDENCE, exceedances, poisson_upper

LEAST_OPERATIONS = 1_000
LEAST_MINUTES = 20
"""With less data a peak means nothing."""

PEAK_SHARE = 0.001
"""Of the minutes of the busiest day, so many may have more load: the second highest of a whole day
counts, and the highest of less than 1,000 minutes."""

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Minutes:
    """The load of minutes, of all kinds; of sampled kinds the load of all their operations.

    Columns of equal length, in the order of time.
    """

    start_s: Integers
    operations: Floats
    """That began to wait."""
    arrivals: Floats
    """The most of them in a second."""
    parked: Floats
    """The highest number of parked operations."""
    arrivals_variance: Floats
    """Of the counts: that of a count, unless it is scaled up from a sample."""
    parked_variance: Floats


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one worker."""

    parked: int = 100_000
    """Operations at once: `Limits.max_parked`."""
    cpu_us: float = 500.0
    """CPU time of one operation, its request included."""
    utilisation: float = 0.7
    """The share of both that is to be used."""


@dataclass(frozen=True, slots=True)
class PeakLoad:
    """The load at the peak of the day with the highest one."""

    value: float
    """Exceeded in PEAK_SHARE of that day's minutes."""
    low: float
    high: float
    """The 95 % interval: below by the order of the minutes, above by the Poisson variation of the
    highest one, since no minute shows more."""
    highest: float
    highest_start_s: int
    """The start of the minute with the highest load."""


@dataclass(frozen=True, slots=True)
class WorkerAdvice:
    """Workers for the peaks of arrivals and of parked operations, each found by itself."""

    workers: int | None
    arrivals_per_s: PeakLoad | None
    parked: PeakLoad | None
    capacity: Capacity
    is_thin: bool
    reason: str


def advise_workers(minutes: Minutes, capacity: Capacity | None = None) -> WorkerAdvice:
    """Return the number of workers that the peaks of `minutes` need.

    A peak of parked operations beyond the limit of a worker is refused with 503, and one of
    arrivals delays all, so each is sized by itself. Not by the highest minute of a day: one burst,
    such as all clients that reconnect after a deploy, is served late rather than by workers that
    are idle all day.
    """
    capacity = capacity or Capacity()
    operations, count = round(float(minutes.operations.sum())), len(minutes.start_s)
    if operations < LEAST_OPERATIONS or count < LEAST_MINUTES:
        return WorkerAdvice(
            workers=None,
            arrivals_per_s=None,
            parked=None,
            capacity=capacity,
            is_thin=True,
            reason=f"Too little data: {counted(operations, 'operation')} in "
            f"{counted(count, 'minute')}, and at least {LEAST_OPERATIONS:,} operations in "
            f"{LEAST_MINUTES} minutes are needed.",
        )
    starts_s = minutes.start_s
    arrivals = _peak(starts_s, minutes.arrivals, minutes.arrivals_variance)
    parked = _peak(starts_s, minutes.parked, minutes.parked_variance)
    parked_used, cpu_used = parked.value / capacity.parked, arrivals.value * capacity.cpu_us / 1e6
    workers = max(1, math.ceil(max(parked_used, cpu_used) / capacity.utilisation))
    return WorkerAdvice(
        workers=workers,
        arrivals_per_s=arrivals,
        parked=parked,
        capacity=capacity,
        is_thin=False,
        reason=_reason(workers, parked_used, cpu_used, arrivals, parked, capacity),
    )


def _peak(starts_s: Integers, loads: Floats, variances: Floats) -> PeakLoad:
    """Return the highest of the peaks of all days."""
    days, firsts = np.unique(starts_s // _DAY_S, return_index=True)
    first_s, last_s = int(starts_s[0]), int(starts_s[-1])
    peaks = []
    for day, first, end in zip(days.tolist(), firsts, [*firsts[1:], len(starts_s)], strict=True):
        # Minutes without a row are without load; before and after the journal nothing is known.
        start_s, end_s = max(first_s, day * _DAY_S), min(last_s + 60, (day + 1) * _DAY_S)
        of_day = slice(first, end)
        count = (end_s - start_s) // 60
        peaks.append(_peak_of_day(starts_s[of_day], loads[of_day], variances[of_day], count))
    return max(peaks, key=lambda peak: (peak.value, peak.highest, -peak.highest_start_s))


def _peak_of_day(starts_s: Integers, loads: Floats, variances: Floats, count: int) -> PeakLoad:
    ordered = np.sort(loads)[::-1]

    def at(rank: int) -> float:
        return float(ordered[rank]) if rank < len(ordered) else 0.0

    # The first of several.
    highest = int(loads.argmax())
    value = float(loads[highest])
    # The number of minutes with more load than the true peak is binomial.
    most_above = exceedances(count, PEAK_SHARE, (1 + CONFIDENCE) / 2)
    return PeakLoad(
        value=at(math.floor(count * PEAK_SHARE)),
        low=at(min(most_above, count - 1)),
        high=poisson_upper(value, float(variances[highest])),
        highest=value,
        highest_start_s=int(starts_s[highest]),
    )


def _reason(
    workers: int,
    parked_used: float,
    cpu_used: float,
    arrivals: PeakLoad,
    parked: PeakLoad,
    capacity: Capacity,
) -> str:
    load = (
        f"At the peaks of the busiest day {figure(arrivals.value)} operations arrive in a second "
        f"and {figure(parked.value)} are parked. With {capacity.parked:,} parked and "
        f"{figure(capacity.cpu_us)} us of CPU each, they use {percent(cpu_used / workers, 1)} of "
        f"the CPU and {percent(parked_used / workers, 1)} of the places of "
        f"{counted(workers, 'worker', 'workers each')}"
    )
    highest = max(parked.highest / capacity.parked, arrivals.highest * capacity.cpu_us / 1e6)
    needed = math.ceil(highest / capacity.utilisation)
    if needed <= workers:
        return f"{load}."
    return (
        f"{load}. For the highest peak alone, of {figure(arrivals.highest)} in a second and "
        f"{figure(parked.highest)} parked, it would be {needed:,} workers."
    )
