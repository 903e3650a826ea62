"""The tables of the page, as HTML."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from html import escape
from typing import Any

from purgatory.pipeline.console import duration, figure, percent, short
from purgatory.pipeline.report.chart_data import OUTCOME_SERIES
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings, Rows
from purgatory.pipeline.rollups.wait_tables import rows_of
from purgatory.pipeline.schemas import COMPLETIONS, OUTCOMES
from purgatory.pipeline.statistics import bucket_end, bucket_start, middle_at

BAR_WIDTH = 160
"""Pixels of a bar in a cell."""
_TEXTS = ("why", "latest error", "outcome", "outcomes", "p50 to p99", "key fired", "labels")


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


# Characters of an error.
_SHOWN_ERROR = 300


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
    outcomes = ("fired", "expired")
    shares = ", ".join(f"{escape(percent(row[of] / row['operations']))} {of}" for of in outcomes)
    return (
        f'<svg class="share" viewBox="0 0 {BAR_WIDTH} 10" width="{BAR_WIDTH}" height="10" '
        f'role="img"><title>{shares}</title>{"".join(_bar_parts(row))}</svg>'
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


HourlyLoad = Mapping[datetime, tuple[float, int]]
"""The parked operations by hour, in the order of time: their mean, and an upper bound of their
peak, as the peaks of kinds within a minute are added."""
SHOWN_DAYS = 31


def hourly_load(findings: Findings) -> HourlyLoad:
    """Return the parked operations by hour."""
    found = rows_of(
        findings.parked,
        """
        WITH minutes AS (SELECT epoch_us(minute) // 60000000 AS number, sum(parked_mean) AS mean,
                                sum(parked_peak) AS peak FROM found GROUP BY ALL)
        SELECT number // 60 AS hour, sum(mean) / 60, max(peak)::BIGINT
        FROM minutes GROUP BY ALL ORDER BY hour
        """,
    )
    return {datetime.fromtimestamp(hour * 3_600, UTC): (mean, peak) for hour, mean, peak in found}


def last_days(load: HourlyLoad) -> HourlyLoad:
    """Return the hours of the SHOWN_DAYS last days with an operation."""
    days = {*sorted({hour.date() for hour in load})[-SHOWN_DAYS:]}
    return {hour: found for hour, found in load.items() if hour.date() in days}


SHADES = 10
"""Classes q0 to q9 of the style sheet: a scale on which equal steps look equal."""
# From this ratio of the highest to the lowest on, the scale is logarithmic.
_WIDE = 20
_WIDEST = 1_000


def hours_table(load: HourlyLoad) -> str:
    """Return the last days as rows of 24 cells, with the scale."""
    shown = {hour: mean for hour, (mean, _) in last_days(load).items()}
    days = sorted({hour.date() for hour in shown})
    high = max(shown.values(), default=0.0)
    if not high:
        return ""
    # The journal's first and last hour are partly covered: they are not the scale's lower end.
    means = sorted(mean for mean in shown.values() if mean > 0)
    low = max(high / _WIDEST, means[len(means) // 20])
    rows = "".join(_row(day, shown, low, high) for day in days)
    hours = "".join(f'<th scope="col">{hour:02d}</th>' for hour in range(24))
    # The scale has a lower end above zero: an hour without operations has no colour.
    shades = "".join(f'<i class="q{shade}"></i>' for shade in range(SHADES))
    kind = "logarithmic" if high > _WIDE * low else "linear"
    return (
        '<div class="scroll" role="region" aria-label="Parked, by day and hour" tabindex="0">'
        "<table class=hours><caption>Mean number of parked operations, by day and hour (UTC)"
        f'</caption><thead><tr><th scope="col">day</th>{hours}</tr></thead><tbody>{rows}</tbody>'
        f'</table></div><p class="scale faint"><span>{figure(low)}</span>'
        f'<span class="shades" aria-hidden="true">{shades}</span><span>{figure(high)}, {kind}'
        "</span></p>"
    )


def _row(day: date, shown: dict[datetime, float], low: float, high: float) -> str:
    by_hour = {hour.hour: mean for hour, mean in shown.items() if hour.date() == day}
    cells = "".join(_cell(day, hour, by_hour.get(hour), low, high) for hour in range(24))
    return f'<tr><th scope="row">{day:%a %d} <span>{day:%b}</span></th>{cells}</tr>'


def _cell(day: date, hour: int, mean: float | None, low: float, high: float) -> str:
    if mean is None:
        return "<td></td>"
    text = f"{day:%Y-%m-%d} {hour:02d}:00: {figure(mean)} parked"
    shade = shade_of(mean, low, high)
    return f'<td class="q{shade}" title="{text}"><span>{escape(short(mean))}</span></td>'


def shade_of(value: float, low: float, high: float) -> int:
    """Return the shade of a value between `low` and `high`, which are above zero."""
    if high <= low:
        return SHADES - 1
    if value <= low:
        return 0
    if high > _WIDE * low:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    return min(SHADES - 1, int(share * SHADES))


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
            f"<td>{time_or(row.get('lateness_us_p99'), '')}</td>",
        ]
        for row in rows
    )
    return table((name.replace("_", " "), "operations", *_COLUMNS), body, title)


def outcome_waits_table(findings: Findings) -> str:
    """Return the operations by kind and outcome, and the percentiles of their waits.

    From a histogram; a wait without an end has none.
    """
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for row in findings.wait_counts:
        if row["outcome"] in COMPLETIONS and row["bucket"] is not None:
            counts[row["kind"], row["outcome"]][row["bucket"]] += row["count"]
    found = [
        (row["kind"], outcome, row[outcome], counts[row["kind"], outcome])
        for row in findings.by_kind[: len(findings.kinds)]
        for outcome in OUTCOMES
        if row[outcome]
    ]
    if not found:
        return ""
    buckets = [bucket for *_, counter in found for bucket in counter] or [0]
    low, high = bucket_start(min(buckets)), bucket_end(max(buckets))
    totals = {row["kind"]: row["operations"] for row in findings.by_kind}
    rows = (_outcome_row(*one, totals[one[0]], (low, high)) for one in found)
    header = ("kind", "outcome", "operations", "share", "wait: p50", "p90", "p99", "p50 to p99")
    return table(header, rows, "Waits by outcome, within 0.4 %")


def _outcome_row(
    kind: str, outcome: str, count: int, counts: Counter[int], total: int, span: tuple[int, int]
) -> list[str]:
    times = [middle_at(counts, percents) for percents in _PERCENTS] if counts else []
    return [
        name_cell(kind),
        f'<td class="text narrow"><i class="dot o{OUTCOME_SERIES[outcome]}"></i>{outcome}</td>',
        f"<td>{count:,}</td>",
        percent_cell(count / total),
        *(f"<td>{duration(time_us)}</td>" for time_us in times),
        *(() if times else ["<td></td>"] * len(_PERCENTS)),
        f'<td class="bar">{_range_bar(times, span, OUTCOME_SERIES[outcome]) if times else ""}</td>',
    ]


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
