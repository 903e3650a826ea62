"""Confidence intervals of counted shares."""

from __future__ import annotations

import math

from purgatory.pipeline.statistics.confidence import CONFIDENCE, z_score


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
