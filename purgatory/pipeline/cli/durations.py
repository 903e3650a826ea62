"""Times as a person reads them."""

from __future__ import annotations

from purgatory.pipeline.cli.figures import figure

# A unit in microseconds, and from where on it is used. Up to two of a unit are more exact in the
# smaller one: 90 s, not 1.5 min. What would be rounded to a thousand is one of the larger unit.
_UNITS = (
    (86_400_000_000, 2 * 86_400_000_000, "d"),
    (3_600_000_000, 2 * 3_600_000_000, "h"),
    (60_000_000, 2 * 60_000_000, "min"),
    (1_000_000, 999_500, "s"),
    (1_000, 999.5, "ms"),
)


def duration(micros: float) -> str:
    """Return a time with three digits: 850 us, 12.5 ms, 1.2 s, 15 min, 2.5 h, 3 d."""
    for size, least, unit in _UNITS:
        if micros >= least:
            return f"{figure(micros / size)} {unit}"
    return f"{figure(micros)} us"
