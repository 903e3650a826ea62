"""Confidence bounds of counts."""

from __future__ import annotations

import math

from purgatory.pipeline.statistics.confidence import CONFIDENCE, z_score


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
