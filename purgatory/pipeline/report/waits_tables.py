"""The tables of waits by kind, by prefix of the key and by outcome, as HTML."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from purgatory.pipeline.console.formatting import duration
from purgatory.pipeline.outcomes.schema import COMPLETIONS
from purgatory.pipeline.report.charts.theme import OUTCOME_SERIES
from purgatory.pipeline.report.findings import Findings, Rows
from purgatory.pipeline.report.html_table import BAR_WIDTH, name_cell, percent_cell, table, time_or
from purgatory.pipeline.statistics.histogram import bucket_end, bucket_start

SHOWN_PREFIXES = 30

_COLUMNS = ("fired", "expired", "wait: p50", "p90", "p99", "maximum", "lateness: p99")
_PERCENTS = (50.0, 90.0, 99.0)


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
    scale = BAR_WIDTH / max(high - low, 1e-9)
    places = [max(0.0, math.log10(max(time_us, 100)) - low) * scale for time_us in times]
    width = max(2.0, places[-1] - places[0])
    marks = "".join(f'<circle cx="{place + 4:.1f}" cy="8" r="3"/>' for place in places)
    return (
        f'<svg class="range o{series}" viewBox="0 0 {BAR_WIDTH + 8} 16" width="{BAR_WIDTH + 8}" '
        f'height="16" aria-hidden="true"><rect x="{places[0] + 4:.1f}" y="6" width="{width:.1f}" '
        f'height="4" rx="2"/>{marks}</svg>'
    )
