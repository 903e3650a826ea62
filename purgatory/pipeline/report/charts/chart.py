"""Charts: what the page and the files show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTCOME_SERIES: Final = {
    name: place
    for place, name in enumerate(
        ("fired", "expired", "cancelled", "drained", "outdated", "lost", "open")
    )
}


"""The index of the colour of an outcome, in every chart. Kinds have other colours."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a chart, as #rrggbb."""

    ink: str
    faint: str
    grid: str
    paper: str
    series: tuple[str, ...]
    outcomes: tuple[str, ...]

    def outcome(self, name: str) -> str:
        """Return the colour of an outcome."""
        return self.outcomes[OUTCOME_SERIES[name]]

    def of(self, position: int) -> str:
        """Return the colour of the series at `position`; they repeat after the last."""
        return self.series[position % len(self.series)]


ON_PAPER: Final = Palette(
    ink="#1f2430",
    faint="#8a919e",
    grid="#dfe3ea",
    paper="#ffffff",
    series=(
        *("#2d5fc4", "#b3457e", "#17808a", "#8a6d00"),
        *("#8e4bb0", "#4d7a1f", "#a2502b", "#5f5c75"),
    ),
    outcomes=("#0f8a6a", "#cc7a00", "#5d7fa3", "#8a5fb5", "#b3457e", "#c62828", "#8b89a3"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a drawing, a summary in words, and a table of its figures.

    The page draws it in the browser, from `chart_data`; `drawing.chart_files` draws it for files.
    Summary and table are the chart for readers who cannot see the drawing.
    """

    name: str
    title: str
    summary: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The drawn figures, or the most important of them."""
    draw: Callable[[Figure, Palette], None]
    """Draw the chart for a file."""
    height: float = 3.6
    """In inches; all files are equally wide."""
