"""Confidence intervals of counted shares."""

from __future__ import annotations

CONFIDENCE = 0.95


def clopper_pearson(
    successes: int, trials: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the exact interval of a binomial share: it covers the true one at least so often.

    Raises ValueError unless 0 <= successes <= trials and trials is at least 1.

    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    # Imported here: it takes half a second, and only the advice needs it.
    from scipy.special import betaincinv

    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}: give a count of at most all, and one or more")
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def exceedances(trials: int, share: float, confidence: float) -> int:
    """Return the least count that a binomial one exceeds with at most 1 - `confidence`."""
    chance = (1 - share) ** trials
    total, count = chance, 0
    while total < confidence and count < trials:
        count += 1
        chance *= (trials - count + 1) / count * share / (1 - share)
        total += chance
    return count
