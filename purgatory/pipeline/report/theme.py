"""Colours: those of files, and placeholders that a page replaces by CSS variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OUTCOME_SERIES: Final = {
    "fired": 2,
    "expired": 1,
    "cancelled": 4,
    "drained": 0,
    "lost": 5,
    "open": 7,
}
"""The index of the series colour of an outcome, in every chart."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a chart, as #rrggbb."""

    ink: str
    faint: str
    grid: str
    paper: str
    series: tuple[str, ...]

    def outcome(self, name: str) -> str:
        """Return the colour of an outcome."""
        return self.series[OUTCOME_SERIES[name]]

    def of(self, position: int) -> str:
        """Return the colour of the series at `position`; they repeat after the last."""
        return self.series[position % len(self.series)]


ON_PAPER: Final = Palette(
    ink="#1f2430",
    faint="#8a919e",
    grid="#dfe3ea",
    paper="#ffffff",
    series=(
        *("#2563a8", "#c2571a", "#2e7d4f", "#8e4bb0"),
        *("#a37a00", "#b3395c", "#1b8a8f", "#6b7280"),
    ),
)

# Unused colours that stand for CSS variables: a drawing follows the page's light or dark theme.
PLACEHOLDERS: Final = Palette(
    ink="#010203",
    faint="#020304",
    grid="#030405",
    paper="#040506",
    series=(
        *("#050607", "#060708", "#070809", "#08090a"),
        *("#090a0b", "#0a0b0c", "#0b0c0d", "#0c0d0e"),
    ),
)

_VARIABLES: Final[Mapping[str, str]] = {
    PLACEHOLDERS.ink: "var(--ink)",
    PLACEHOLDERS.faint: "var(--faint)",
    PLACEHOLDERS.grid: "var(--grid)",
    PLACEHOLDERS.paper: "var(--paper)",
    **{colour: f"var(--series-{place})" for place, colour in enumerate(PLACEHOLDERS.series)},
}


def for_page(svg: str) -> str:
    """Return a drawing in PLACEHOLDERS in the CSS variables of the page."""
    placeholders = re.compile("|".join(_VARIABLES))
    return placeholders.sub(lambda found: _VARIABLES[found[0]], svg)
