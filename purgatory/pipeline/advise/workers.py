"""Advice on the number of workers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from purgatory.pipeline.console.formatting import counted, figure, percent
from purgatory.pipeline.statistics.binomial import CONFIDENCE, exceedances
from purgatory.pipeline.statistics.poisson import poisson_upper

LEAST_OPERATIONS = 1_000
LEAST_MINUTES = 20
"""With less data a peak means nothing."""

PEAK_SHARE = 0.001
"""Of the minutes of the busiest day, so many may have more load: the second highest of a whole day
counts, and the highest of less than 1,000 minutes."""

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Minute:
    """The load of one minute, of all kinds; of sampled kinds the load of all their operations."""

    start_s: int
    operations: float
    """That began to wait."""
    parked: float
    """The highest number of parked operations."""
    operations_variance: float | None = None
    """Of the count, if it is scaled up from a sample; by default that of a count."""
    parked_variance: float | None = None


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


def advise_workers(minutes: Sequence[Minute], capacity: Capacity | None = None) -> WorkerAdvice:
    """Return the number of workers that the peaks of `minutes` need.

    A peak of parked operations beyond the limit of a worker is refused with 503, and one of
    arrivals delays all, so each is sized by itself, by the upper end of its interval.
    """
    capacity = capacity or Capacity()
    operations = round(sum(minute.operations for minute in minutes))
    if operations < LEAST_OPERATIONS or len(minutes) < LEAST_MINUTES:
        return WorkerAdvice(
            workers=None,
            arrivals_per_s=None,
            parked=None,
            capacity=capacity,
            is_thin=True,
            reason=f"Too little data: {counted(operations, 'operation')} in "
            f"{counted(len(minutes), 'minute')}, and at least {LEAST_OPERATIONS:,} operations in "
            f"{LEAST_MINUTES} minutes are needed.",
        )
    arrivals = _per_second(
        _peak(minutes, lambda minute: (minute.operations, minute.operations_variance))
    )
    parked = _peak(minutes, lambda minute: (minute.parked, minute.parked_variance))
    by_parked = parked.high / (capacity.parked * capacity.utilisation)
    by_cpu = arrivals.high * capacity.cpu_us / 1e6 / capacity.utilisation
    workers = max(1, math.ceil(max(by_parked, by_cpu)))
    return WorkerAdvice(
        workers=workers,
        arrivals_per_s=arrivals,
        parked=parked,
        capacity=capacity,
        is_thin=False,
        reason=_reason(workers, by_parked, by_cpu, arrivals, parked, capacity),
    )


def _peak(
    minutes: Sequence[Minute], load: Callable[[Minute], tuple[float, float | None]]
) -> PeakLoad:
    """Return the highest of the peaks of all days."""
    days: dict[int, list[Minute]] = defaultdict(list)
    for minute in minutes:
        days[minute.start_s // _DAY_S].append(minute)
    first_s = min(minute.start_s for minute in minutes)
    last_s = max(minute.start_s for minute in minutes)
    peaks = []
    for day, of_day in days.items():
        # Minutes without a row are without load; before and after the journal nothing is known.
        start_s, end_s = max(first_s, day * _DAY_S), min(last_s + 60, (day + 1) * _DAY_S)
        peaks.append(_peak_of_day(of_day, (end_s - start_s) // 60, load))
    return max(peaks, key=lambda peak: (peak.value, peak.highest, -peak.highest_start_s))


def _peak_of_day(
    minutes: Sequence[Minute], count: int, load: Callable[[Minute], tuple[float, float | None]]
) -> PeakLoad:
    loads = sorted((load(minute)[0] for minute in minutes), reverse=True)
    loads += [0.0] * (count - len(loads))
    highest = max(minutes, key=lambda minute: (load(minute)[0], -minute.start_s))
    value, variance = load(highest)
    # The number of minutes with more load than the true peak is binomial.
    most_above = exceedances(len(loads), PEAK_SHARE, (1 + CONFIDENCE) / 2)
    return PeakLoad(
        value=loads[math.floor(len(loads) * PEAK_SHARE)],
        low=loads[min(most_above, len(loads) - 1)],
        high=poisson_upper(value, value if variance is None else variance),
        highest=value,
        highest_start_s=highest.start_s,
    )


def _per_second(peak: PeakLoad) -> PeakLoad:
    return PeakLoad(
        value=peak.value / 60,
        low=peak.low / 60,
        high=peak.high / 60,
        highest=peak.highest / 60,
        highest_start_s=peak.highest_start_s,
    )


def _reason(
    workers: int,
    by_parked: float,
    by_cpu: float,
    arrivals: PeakLoad,
    parked: PeakLoad,
    capacity: Capacity,
) -> str:
    bottleneck = "the number of parked operations" if by_parked > by_cpu else "CPU"
    return (
        f"At the peaks of the busiest day {figure(arrivals.value)} operations a second arrive "
        f"({figure(arrivals.high)} at the upper end of the interval) and {figure(parked.value)} "
        f"are parked ({figure(parked.high)}). At {percent(capacity.utilisation, 0)} utilisation, "
        f"{capacity.parked:,} parked and {figure(capacity.cpu_us)} us of CPU each, "
        f"{counted(workers, 'worker is enough', 'workers are enough')}; the bottleneck is "
        f"{bottleneck}."
    )
