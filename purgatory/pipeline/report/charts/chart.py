"""Charts: what the page and the files show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory.pipeline.report.charts.theme import Palette

if TYPE_CHECKING:
    # Importing it takes longer than a report without files of charts.
    from matplotlib.figure import Figure


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
