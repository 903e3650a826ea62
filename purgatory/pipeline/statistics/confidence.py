"""The confidence of all intervals."""

from __future__ import annotations

from statistics import NormalDist

CONFIDENCE = 0.95


def z_score(confidence: float) -> float:
    """Return how many standard deviations a two-sided interval of a normal value has each way."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
