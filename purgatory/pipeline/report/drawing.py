"""Charts as files and as elements of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from warnings import catch_warnings, filterwarnings

from matplotlib import rc_context
from matplotlib.figure import Figure

from purgatory.pipeline.report.theme import ON_PAPER, PLACEHOLDERS, Palette, for_page

_DPI = 144
_WIDTH = 9.2
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a drawing, a summary in words, and a table of its figures.

    Summary and table are the chart for readers who cannot see the drawing.
    """

    name: str
    title: str
    summary: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The drawn figures, or the most important of them."""
    draw: Callable[[Figure, Palette], None]
    height: float = 3.6
    """In inches; all charts are as wide as the page."""

    def page_svg(self) -> str:
        """Return the drawing as an element of a page, in the CSS variables of the theme."""
        svg = for_page(self._svg(PLACEHOLDERS))
        return _readable(_labelled(_with_own_ids(_fluid(svg), self.name), self))

    def paper_svg(self) -> bytes:
        """Return the drawing as an SVG file."""
        return _readable(self._svg(ON_PAPER)).encode()

    def png(self) -> bytes:
        """Return the drawing as a PNG file."""
        with _style(ON_PAPER):
            target = io.BytesIO()
            self._figure(ON_PAPER).savefig(target, format="png", dpi=_DPI)
        return target.getvalue()

    def _svg(self, palette: Palette) -> str:
        with _style(palette):
            target = io.StringIO()
            # Without a date: the same figures give the same file.
            self._figure(palette).savefig(target, format="svg", metadata={"Date": None})
        return target.getvalue()

    def _figure(self, palette: Palette) -> Figure:
        figure = Figure(figsize=(_WIDTH, self.height), layout="constrained")
        self.draw(figure, palette)
        return figure


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


def _readable(svg: str) -> str:
    """Return the drawing with U+FFFD in place of characters that XML does not allow."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", svg)


def _fluid(svg: str) -> str:
    """Return the drawing without a fixed size, and without what only a file needs."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    head, bracket, rest = svg.partition(">")
    return re.sub(r' (width|height)="[^"]*"', "", head) + bracket + rest


def _with_own_ids(svg: str, name: str) -> str:
    """Return the drawing with the chart's name before each id, as ids are unique in a page."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'\bhref="#', f'href="#{name}-', svg)
    return svg.replace("url(#", f"url(#{name}-")


def _labelled(svg: str, chart: Chart) -> str:
    name = chart.name
    label = (
        f'<title id="{name}-title">{escape(chart.title)}</title>'
        f'<desc id="{name}-summary">{escape(chart.summary)}</desc>'
    )
    head, _, rest = svg.partition(">")
    return f'{head} role="img" aria-labelledby="{name}-title {name}-summary">{label}{rest}'
