"""Colours: of paper, and stand-ins that a page replaces by its own."""

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
"""Which of the series' colours an outcome has, in every chart."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours that a chart is drawn in, as #rrggbb."""

    ink: str
    faint: str
    grid: str
    paper: str
    series: tuple[str, ...]

    def outcome(self, name: str) -> str:
        """Return the colour of an outcome."""
        return self.series[OUTCOME_SERIES[name]]

    def of(self, position: int) -> str:
        """Return the colour of the series at `position`; they begin again after the last."""
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

# Colours that nobody draws with. A drawing inside a page follows the page's light or dark theme.
STAND_INS: Final = Palette(
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
    STAND_INS.ink: "var(--ink)",
    STAND_INS.faint: "var(--faint)",
    STAND_INS.grid: "var(--grid)",
    STAND_INS.paper: "var(--paper)",
    **{colour: f"var(--series-{place})" for place, colour in enumerate(STAND_INS.series)},
}


def for_page(svg: str) -> str:
    """Return a drawing in STAND_INS with the page's CSS variables in their place."""
    stand_ins = re.compile("|".join(_VARIABLES))
    return stand_ins.sub(lambda found: _VARIABLES[found[0]], svg)
