"""Median, minimum and maximum of several rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the minimum and the maximum of some rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Return the spread of at least one figure."""
        return cls(median(figures), min(figures), max(figures))
