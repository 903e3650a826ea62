"""Advice on the number of workers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from purgatory.pipeline.console.formatting import counted, figure, percent

LEAST_OPERATIONS = 1_000
LEAST_MINUTES = 20
"""With less data the busiest hour means nothing."""

_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Minute:
    """The operations that began to wait within one minute, and the sum of their waits."""

    start_s: int
    operations: int
    wait_s: float
    parked_mean: float
    """The counted mean of parked operations in this minute, whenever they began."""


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
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class WorkerAdvice:
    """Workers for the busiest hour."""

    workers: int | None
    hour_start_s: int | None
    arrivals_per_s: Estimate | None
    wait_s: Estimate | None
    parked: Estimate | None
    """By Little's law, L = lambda W."""
    parked_counted: float | None
    """The same, counted: the two agree if no data is missing."""
    capacity: Capacity
    is_thin: bool
    reason: str


def advise_workers(
    minutes: Sequence[Minute], capacity: Capacity | None = None, seed: int = 1
) -> WorkerAdvice:
    """Return the number of workers that the busiest sixty minutes in `minutes` need.

    Little's law gives the number of parked operations from their arrival rate and their mean wait;
    it holds for any distribution. The intervals are bootstrapped over the minutes of the hour as if
    these were independent; if they are not, the intervals are too narrow. `seed` makes them
    reproducible.

    Source: Little, Operations Research 9 (1961); Efron, Annals of Statistics 7 (1979).
    """
    capacity = capacity or Capacity()
    hour = _busiest(minutes)
    operations = sum(minute.operations for minute in hour)
    if operations < LEAST_OPERATIONS or len(hour) < LEAST_MINUTES:
        return WorkerAdvice(
            workers=None,
            hour_start_s=hour[0].start_s if hour else None,
            arrivals_per_s=None,
            wait_s=None,
            parked=None,
            parked_counted=None,
            capacity=capacity,
            is_thin=True,
            reason="Too little data: the busiest hour has "
            f"{counted(operations, 'operation')} in {counted(len(hour), 'minute')}, and at least "
            f"{LEAST_OPERATIONS:,} operations in {LEAST_MINUTES} minutes are needed.",
        )
    arrivals, wait, parked = _estimates(hour, random.Random(seed))  # noqa: S311 - a simulation, by its seed
    by_parked = parked.high / (capacity.parked * capacity.utilisation)
    by_cpu = arrivals.high * capacity.cpu_us / 1e6 / capacity.utilisation
    workers = max(1, math.ceil(max(by_parked, by_cpu)))
    return WorkerAdvice(
        workers=workers,
        hour_start_s=hour[0].start_s,
        arrivals_per_s=arrivals,
        wait_s=wait,
        parked=parked,
        parked_counted=sum(minute.parked_mean for minute in hour) / len(hour),
        capacity=capacity,
        is_thin=False,
        reason=_reason(workers, by_parked, by_cpu, arrivals, parked, capacity),
    )


def _busiest(minutes: Sequence[Minute]) -> list[Minute]:
    """Return the sixty consecutive minutes with the largest sum of waits."""
    ordered = sorted(minutes, key=lambda minute: minute.start_s)
    best: tuple[float, int, int] = (-1.0, 0, 0)
    first, total = 0, 0.0
    for last, minute in enumerate(ordered):
        total += minute.wait_s
        while ordered[first].start_s <= minute.start_s - 3600:
            total -= ordered[first].wait_s
            first += 1
        best = max(best, (total, -first, last + 1))
    _, negative_first, end = best
    return _without_gaps(ordered[-negative_first:end])


def _without_gaps(minutes: Sequence[Minute]) -> list[Minute]:
    """Return `minutes` with the empty ones, which count as much as the others."""
    if not minutes:
        return []
    known = {minute.start_s: minute for minute in minutes}
    starts = range(minutes[0].start_s, minutes[-1].start_s + 1, 60)
    return [known.get(start_s, Minute(start_s, 0, 0.0, 0.0)) for start_s in starts]


def _estimates(
    hour: Sequence[Minute], chance: random.Random
) -> tuple[Estimate, Estimate, Estimate]:
    draws = [_figures(hour)]
    draws += [_figures(chance.choices(hour, k=len(hour))) for _ in range(_RESAMPLES)]
    arrivals, wait, parked = (
        Estimate(column[0], *_middle(sorted(column[1:]))) for column in zip(*draws, strict=True)
    )
    return arrivals, wait, parked


def _figures(hour: Sequence[Minute]) -> tuple[float, float, float]:
    operations = sum(minute.operations for minute in hour)
    wait_s = sum(minute.wait_s for minute in hour)
    seconds = 60 * len(hour)
    return operations / seconds, wait_s / max(1, operations), wait_s / seconds


def _middle(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the middle 95 %."""
    aside = round(len(ordered) * 0.025)
    return ordered[aside], ordered[-1 - aside]


def _reason(
    workers: int,
    by_parked: float,
    by_cpu: float,
    arrivals: Estimate,
    parked: Estimate,
    capacity: Capacity,
) -> str:
    bottleneck = "the number of parked operations" if by_parked > by_cpu else "CPU"
    return (
        f"In the busiest hour {figure(arrivals.high)} operations a second arrive and "
        f"{figure(parked.high)} are parked, at the upper end of the intervals. At "
        f"{percent(capacity.utilisation, 0)} utilisation, {capacity.parked:,} parked and "
        f"{figure(capacity.cpu_us)} us of CPU each, "
        f"{counted(workers, 'worker is enough', 'workers are enough')}; the bottleneck is "
        f"{bottleneck}."
    )
