"""Tables of the page, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from purgatory.pipeline.console.formatting import duration, percent

BAR_WIDTH = 160
"""Pixels of a bar in a cell."""
_TEXTS = ("why", "latest error", "outcome", "outcomes", "p50 to p99")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, is_cards: bool = True
) -> str:
    """Return a table with escaped `header` and `caption`; `rows` are cells as HTML.

    On a narrow screen rows become cards, unless the table is one of few short columns.
    """
    head = "".join(
        f'<th scope="col"{" class=text" if name in _TEXTS else ""}>{escape(name)}</th>'
        for name in header
    )
    body = "".join(f"<tr>{''.join(map(_labelled, cells, header))}</tr>" for cells in rows)
    kind = ' class="cards"' if is_cards else ""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f"<table{kind}><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    """Return `content` that opens by a click on `summary`."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def name_cell(text: str) -> str:
    """Return the header of a row, escaped."""
    return f'<th scope="row">{escape(text)}</th>'


def cells(name: str, *values: str) -> list[str]:
    """Return a row of texts, escaped."""
    return [name_cell(name), *(f"<td>{escape(value)}</td>" for value in values)]


def with_interval(value: str, interval: str) -> str:
    """Return a cell with a value and its interval below it, escaped."""
    return f"<td>{escape(value)}<small>{escape(interval)}</small></td>"


def time_or(micros: float | None, otherwise: str) -> str:
    """Return a duration as text, or `otherwise`."""
    return otherwise if micros is None else duration(micros)


def percent_cell(share: float) -> str:
    """Return a cell with a share."""
    return f"<td>{escape(percent(share))}</td>"


def _labelled(cell: str, name: str) -> str:
    # As a card a row has no header above it: each cell has its own.
    return cell.replace("<td", f'<td data-label="{escape(name)}"', 1) if name else cell
