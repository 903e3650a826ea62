"""Charts as files. Only this module imports Matplotlib, and only files of charts need it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from warnings import catch_warnings, filterwarnings

from matplotlib import rc_context
from matplotlib.figure import Figure

from purgatory.pipeline.report.charts.chart_data import ON_PAPER, Chart, Palette

_DPI = 144
_WIDTH = 9.2
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def chart_files(chart: Chart) -> dict[str, bytes]:
    """Return the drawing of `chart` as an SVG and as a PNG file, by the ends of their names."""
    with _style(ON_PAPER):
        figure = Figure(figsize=(_WIDTH, chart.height), layout="constrained")
        chart.draw(figure, ON_PAPER)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=_DPI)
        # The places are found: finding them again takes a quarter of the time.
        figure.set_layout_engine("none")
        # Without a date: the same figures give the same file.
        figure.savefig(svg, format="svg", metadata={"Date": None})
    text = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", svg.getvalue())
    return {"svg": text.encode(), "png": png.getvalue()}


@contextmanager
def _style(palette: Palette) -> Iterator[None]:
    with catch_warnings(), _parameters(palette):
        # A key may be in any script. As text it is drawn in a font of the reader.
        filterwarnings("ignore", r"Glyph \d+ .*missing from font")
        yield


def _parameters(palette: Palette) -> AbstractContextManager[None]:
    return rc_context(
        {
            # Text rather than outlines: it can be searched and read aloud.
            "svg.fonttype": "none",
            # A key may have dollar signs that are not formulas.
            "text.parse_math": False,
            "timezone": "UTC",
            "date.converter": "concise",
            # The same drawing has the same ids.
            "svg.hashsalt": "purgatory",
            "font.family": "sans-serif",
            "font.size": 10,
            "text.color": palette.ink,
            "axes.edgecolor": palette.faint,
            "axes.labelcolor": palette.ink,
            "axes.facecolor": "none",
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": palette.paper,
            "grid.color": palette.grid,
            "grid.linewidth": 0.7,
            "xtick.color": palette.ink,
            "ytick.color": palette.ink,
            "legend.frameon": False,
            "legend.fontsize": 9,
        }
    )
