"""The table of hot keys, as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from purgatory.pipeline.console.formatting import percent
from purgatory.pipeline.report.charts.theme import OUTCOME_SERIES
from purgatory.pipeline.report.findings import Rows
from purgatory.pipeline.report.html_table import BAR_WIDTH, name_cell, percent_cell, table, time_or

SHOWN_KEYS = 100


def hot_keys_table(rows: Rows) -> str:
    """Return the keys with most operations, each with a bar."""
    if not rows:
        return "<p>No operation has a key.</p>"
    header = ("key", "operations", "share", "outcomes", "fired", "expired", "mean wait")
    caption = "Keys with most operations; one with two keys counts for both"
    return table(header, map(_key_row, rows[:SHOWN_KEYS]), caption)


def _key_row(row: Mapping[str, Any]) -> list[str]:
    return [
        name_cell(row["key"]),
        f"<td>{row['operations']:,}</td>",
        percent_cell(row["share"]),
        f'<td class="bar">{_outcome_bar(row)}</td>',
        f"<td>{row['fired']:,}</td>",
        f"<td>{row['expired']:,}</td>",
        f"<td>{time_or(row['wait_us_mean'], '')}</td>",
    ]


def _outcome_bar(row: Mapping[str, Any]) -> str:
    return (
        f'<svg class="share" viewBox="0 0 {BAR_WIDTH} 10" width="{BAR_WIDTH}" height="10" '
        f'role="img"><title>{escape(_words(row))}</title>{"".join(_bar_parts(row))}</svg>'
    )


def _bar_parts(row: Mapping[str, Any]) -> Iterator[str]:
    rest = row["operations"] - row["fired"] - row["expired"]
    left = 0.0
    for outcome, count in (("fired", row["fired"]), ("expired", row["expired"]), ("open", rest)):
        width = BAR_WIDTH * count / row["operations"]
        if width > 0.05:
            series = OUTCOME_SERIES[outcome]
            yield f'<rect class="o{series}" x="{left:.1f}" width="{width:.1f}" height="10"/>'
        left += width


def _words(row: Mapping[str, Any]) -> str:
    shares = (percent(row[name] / row["operations"]) for name in ("fired", "expired"))
    return "{} fired, {} expired".format(*shares)
