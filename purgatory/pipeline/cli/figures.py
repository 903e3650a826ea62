"""Counts, shares and other figures as a person reads them."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count of things: 0 files, 1 file, 1,000 files."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def percent(share: float, digits: int = 2) -> str:
    """Return a share as 12.34%; of what is not none, or not all, <0.01% and >99.99% at the most."""
    text = f"{share:.{digits}%}"
    if share > 0 and text == f"{0:.{digits}%}":
        return f"<{10**-digits:.{digits}f}%"
    if share < 1 and text == f"{1:.{digits}%}":
        return f">{100 - 10**-digits:.{digits}f}%"
    return text


def figure(value: float, digits: int = 3) -> str:
    """Return a number of so many digits that count, and all of those before the point."""
    return f"{value:,.0f}" if value >= 10**digits - 0.5 else f"{value:.{digits}g}"
