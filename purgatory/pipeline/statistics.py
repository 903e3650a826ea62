"""Statistics: histograms, survival curves, confidence intervals.

Nothing here knows operations or outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import Final

SUB_BITS: Final = 7
SUB_BUCKETS: Final = 1 << SUB_BITS
"""Buckets for each doubling of the value: none is wider than 1/128 of its values."""

COARSE: Final = SUB_BUCKETS >> 3
"""So many buckets in a row, from a multiple of this on, are one of 8 for each doubling."""


def bucket(value: int) -> int:
    """Return the index of the bucket of a whole number of zero or more; it grows with the number.

    Below 256 each number has a bucket of its own.
    """
    if value < SUB_BUCKETS:
        return value
    shift = value.bit_length() - 1 - SUB_BITS
    return (shift << SUB_BITS) + (value >> shift)


def bucket_start(index: int) -> int:
    """Return the least number in a bucket."""
    if index < 2 * SUB_BUCKETS:
        return index
    shift = (index >> SUB_BITS) - 1
    return (index - (shift << SUB_BITS)) << shift


def bucket_end(index: int) -> int:
    """Return the greatest number in a bucket."""
    return bucket_start(index + 1) - 1


def middle_at(counts: Mapping[int, int], percent: float, width: int = 1) -> float:
    """Return the middle of the bucket with a percentile, by nearest rank; 0 without counts.

    `counts` are by bucket, or by the first of `width` buckets.
    """
    total, upto = sum(counts.values()), 0
    for index in sorted(counts):
        upto += counts[index]
        if upto * 100 >= total * percent:
            return (bucket_start(index) + bucket_end(index + width - 1)) / 2
    return 0.0


CONFIDENCE = 0.95


def z_score(confidence: float) -> float:
    """Return how many standard deviations a two-sided interval of a normal value has each way."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def wilson_interval(
    successes: int, trials: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the score interval of a binomial share: on average it covers the true one so often.

    Raises ValueError unless 0 <= successes <= trials and trials is at least 1.

    Source: Wilson, JASA 22 (1927); Brown, Cai and DasGupta, Statistical Science 16 (2001).
    """
    # Rather than an exact interval by scipy.special, whose import takes a tenth of a report on a
    # new hour, and which covers more than it says.
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}: give a count of at most all, and one or more")
    z = z_score(confidence)
    share, weight = successes / trials, z * z / trials
    middle = share + weight / 2
    half = math.sqrt(weight * (share * (1 - share) + weight / 4))
    low, high = (middle - half) / (1 + weight), (middle + half) / (1 + weight)
    # Without the error of rounding where the interval ends at a limit.
    return (low if successes else 0.0), (high if successes < trials else 1.0)


def exceedances(trials: int, share: float, confidence: float) -> int:
    """Return the least count that a binomial one exceeds with at most 1 - `confidence`."""
    chance = (1 - share) ** trials
    total, count = chance, 0
    while total < confidence and count < trials:
        count += 1
        chance *= (trials - count + 1) / count * share / (1 - share)
        total += chance
    return count


def poisson_upper(value: float, variance: float, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of the two-sided interval of a Poisson mean, from a count.

    A `value` that is scaled up from a sample has a `variance` greater than itself: their ratio is
    the factor by which a count was scaled. At 95 % the bound is within 1 % of the exact one
    (Garwood's).

    Source: Byar, in Breslow and Day, Statistical Methods in Cancer Research II (1987), page 69.
    """
    factor = variance / value if value else 1.0
    count = value / factor + 1
    z = z_score(confidence)
    return factor * count * (1 - 1 / (9 * count) + z / (3 * math.sqrt(count))) ** 3


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the curve: the share that would wait longer if only fires ended a wait."""

    time_us: int
    at_risk: int
    """Operations still waiting just before."""
    fired: int
    survival: float
    low: float
    high: float
    """The pointwise 95 % confidence interval."""


def kaplan_meier(
    waits: Iterable[tuple[int, int, int]], confidence: float = CONFIDENCE
) -> list[Step]:
    """Return the Kaplan-Meier estimate from `(time_us, fired, censored)`, one step for each time.

    Censored are operations that had not fired when they ended or were observed: expired, cancelled,
    drained, outdated, open. They were at risk until then; leaving them out, or counting them as
    fired, would make waits look shorter than they are. At equal times fires come first. Steps
    without a fire are left out, except for the last one.

    The interval is Greenwood's, of the logarithm of -log S, which keeps it between 0 and 1.

    Source: Kaplan and Meier, JASA 53 (1958); Greenwood (1926); Kalbfleisch and Prentice.
    """
    # Not by scipy's `ecdf`, which takes an array with an element for each operation: here they are
    # counted, whatever their number. The tests compare the two.
    counts = [
        (time_us, sum(f for _, f, _ in same), sum(c for _, _, c in same))
        for time_us, group in groupby(sorted(waits), key=lambda wait: wait[0])
        if (same := list(group))
    ]
    z = z_score(confidence)
    at_risk = sum(fired + censored for _, fired, censored in counts)
    survival, variance, steps = 1.0, 0.0, []
    for time_us, fired, censored in counts:
        if fired:
            survival *= 1 - fired / at_risk
            if fired < at_risk:
                variance += fired / (at_risk * (at_risk - fired))
        if fired or time_us == counts[-1][0]:
            low, high = _interval(survival, variance, z)
            steps.append(Step(time_us, at_risk, fired, survival, low, high))
        at_risk -= fired + censored
    return steps


def time_of_survival(steps: Sequence[Step], share: float) -> int | None:
    """Return the first time beyond which at most `share` wait; None if no step is that low."""
    return next((step.time_us for step in steps if step.survival <= share), None)


def survival_at(steps: Sequence[Step], time_us: float) -> float:
    """Return the share that waits longer than `time_us`: 1 before the first step."""
    survival = 1.0
    for step in steps:
        if step.time_us > time_us:
            break
        survival = step.survival
    return survival


def _interval(survival: float, variance: float, z: float) -> tuple[float, float]:
    if not 0 < survival < 1:
        return survival, survival
    log_survival = math.log(survival)
    spread = math.exp(z * math.sqrt(variance) / abs(log_survival))
    return survival**spread, survival ** (1 / spread)
