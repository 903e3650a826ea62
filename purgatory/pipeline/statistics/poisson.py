"""Confidence bounds of counts."""

from __future__ import annotations

from purgatory.pipeline.statistics.binomial import CONFIDENCE


def poisson_upper(value: float, variance: float, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of the two-sided interval of a Poisson mean, from a count.

    A `value` that is scaled up from a sample has a `variance` greater than itself: their ratio is
    the factor by which a count was scaled.

    Source: Garwood, Biometrika 28 (1936).
    """
    # Imported here: it takes half a second, and only the advice needs it.
    from scipy.special import gammaincinv

    factor = variance / value if value else 1.0
    return factor * float(gammaincinv(value / factor + 1, (1 + confidence) / 2))
