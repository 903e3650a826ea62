"""The tables of waits and of hot keys, as HTML."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from purgatory.pipeline.console.formatting import duration, percent
from purgatory.pipeline.outcomes.schema import COMPLETIONS
from purgatory.pipeline.report.charts.theme import OUTCOME_SERIES
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings, Rows
from purgatory.pipeline.report.html_table import name_cell, percent_cell, table, time_or
from purgatory.pipeline.statistics.histogram import bucket_end, bucket_start

SHOWN_PREFIXES = 30
SHOWN_KEYS = 100

_COLUMNS = ("fired", "expired", "wait: p50", "p90", "p99", "maximum", "lateness: p99")
_PERCENTS = (50.0, 90.0, 99.0)
_BAR_WIDTH = 160
# Characters of an error.
_SHOWN_ERROR = 300


def waits_table(rows: Rows, name: str, title: str) -> str:
    """Return counts and percentiles by the column `name`."""
    body = (
        [
            name_cell(row[name]),
            f"<td>{row['operations']:,}</td>",
            *(percent_cell(row[f"share_{outcome}"]) for outcome in ("fired", "expired")),
            *(
                f"<td>{time_or(row[f'wait_us_{column}'], '')}</td>"
                for column in ("p50", "p90", "p99", "max")
            ),
            f"<td>{time_or(row['lateness_us_p99'], '')}</td>",
        ]
        for row in rows
    )
    return table((name.replace("_", " "), "operations", *_COLUMNS), body, title)


def failed_jobs_table(findings: Findings) -> str:
    """Return the jobs that failed by kind, with an error of each; "" if none did."""
    if not findings.failed_jobs:
        return ""
    totals = {row["kind"]: row["operations"] for row in findings.by_kind}
    rows = (
        [
            name_cell(row["kind"]),
            f"<td>{row['jobs']:,}</td>",
            percent_cell(row["jobs"] / max(row["jobs"], totals.get(row["kind"], 0))),
            f'<td class="text">{escape(shortened(row["error"] or "unknown"))}</td>',
        ]
        for row in findings.failed_jobs[:LISTED_KINDS]
    )
    caption = "Failed jobs: fired or expired is how the wait ended, failed how the job did"
    return table(("kind", "failed", "share", "latest error"), rows, caption)


def shortened(error: str) -> str:
    """Return an error in at most a few lines of a table."""
    return error if len(error) <= _SHOWN_ERROR else f"{error[:_SHOWN_ERROR]}…"


def outcome_waits_table(findings: Findings) -> str:
    """Return the percentiles of the waits by kind and outcome, from their histogram."""
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for row in findings.wait_counts:
        if row["outcome"] in COMPLETIONS and row["bucket"] is not None:
            counts[row["kind"], row["outcome"]][row["bucket"]] += row["count"]
    found = [
        (kind, outcome, counts[kind, outcome])
        for kind in findings.kinds
        for outcome in COMPLETIONS
        if (kind, outcome) in counts
    ]
    if not found:
        return ""
    buckets = [bucket for _, _, counter in found for bucket in counter]
    low, high = bucket_start(min(buckets)), bucket_end(max(buckets))
    totals = {row["kind"]: row["operations"] for row in findings.by_kind}
    rows = (_outcome_row(*one, totals[one[0]], (low, high)) for one in found)
    header = ("kind", "outcome", "operations", "share", "wait: p50", "p90", "p99", "p50 to p99")
    return table(header, rows, "Waits by outcome, within 0.4 %")


def _outcome_row(
    kind: str, outcome: str, counts: Counter[int], total: int, span: tuple[int, int]
) -> list[str]:
    times = [_percentile(counts, percents) for percents in _PERCENTS]
    return [
        name_cell(kind),
        f'<td class="text narrow"><i class="dot o{OUTCOME_SERIES[outcome]}"></i>{outcome}</td>',
        f"<td>{counts.total():,}</td>",
        percent_cell(counts.total() / total),
        *(f"<td>{duration(time_us)}</td>" for time_us in times),
        f'<td class="bar">{_range_bar(times, span, OUTCOME_SERIES[outcome])}</td>',
    ]


def _percentile(counts: Counter[int], percents: float) -> float:
    total, upto = counts.total(), 0
    for bucket in sorted(counts):
        upto += counts[bucket]
        if upto * 100 >= total * percents:
            return (bucket_start(bucket) + bucket_end(bucket)) / 2
    return 0.0


def _range_bar(times: Sequence[float], span: tuple[int, int], series: int) -> str:
    """Return a bar from the first to the last of `times`, with a mark at each; logarithmic."""
    low, high = (math.log10(max(end, 100)) for end in span)
    scale = _BAR_WIDTH / max(high - low, 1e-9)
    places = [max(0.0, math.log10(max(time_us, 100)) - low) * scale for time_us in times]
    width = max(2.0, places[-1] - places[0])
    marks = "".join(f'<circle cx="{place + 4:.1f}" cy="8" r="3"/>' for place in places)
    return (
        f'<svg class="range o{series}" viewBox="0 0 {_BAR_WIDTH + 8} 16" width="{_BAR_WIDTH + 8}" '
        f'height="16" aria-hidden="true"><rect x="{places[0] + 4:.1f}" y="6" width="{width:.1f}" '
        f'height="4" rx="2"/>{marks}</svg>'
    )


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
        f'<svg class="share" viewBox="0 0 {_BAR_WIDTH} 10" width="{_BAR_WIDTH}" height="10" '
        f'role="img"><title>{escape(_words(row))}</title>{"".join(_bar_parts(row))}</svg>'
    )


def _bar_parts(row: Mapping[str, Any]) -> Iterator[str]:
    rest = row["operations"] - row["fired"] - row["expired"]
    left = 0.0
    for outcome, count in (("fired", row["fired"]), ("expired", row["expired"]), ("open", rest)):
        width = _BAR_WIDTH * count / row["operations"]
        if width > 0.05:
            series = OUTCOME_SERIES[outcome]
            yield f'<rect class="o{series}" x="{left:.1f}" width="{width:.1f}" height="10"/>'
        left += width


def _words(row: Mapping[str, Any]) -> str:
    shares = (percent(row[name] / row["operations"]) for name in ("fired", "expired"))
    return "{} fired, {} expired".format(*shares)
