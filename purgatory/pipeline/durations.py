"""Times as a person reads them."""

from __future__ import annotations

_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"))


def duration(micros: float) -> str:
    """Return a time with three digits: 850 us, 12.5 ms, 1.2 s, 15 min, 2.5 h, 3 d."""
    for size, unit in _UNITS:
        # Up to two of a unit are more exact in the smaller one: 90 s, not 1.5 min.
        if micros >= size * (2 if unit != "s" else 1):
            return f"{micros / size:.3g} {unit}"
    return f"{micros / 1000:.3g} ms" if micros >= 1000 else f"{micros:.3g} us"
