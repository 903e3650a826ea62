"""The charts of a part: a summary and a table of each. The page draws them, from `chart_data`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from purgatory.pipeline.console import duration, figure, percent
from purgatory.pipeline.report.chart_data import LEAST_US, OUTCOME_SERIES
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings
from purgatory.pipeline.report.tables import HourlyLoad, last_days, time_or
from purgatory.pipeline.rollups.wait_tables import PERCENTS, Relation, rows_of
from purgatory.pipeline.sql.values import texts
from purgatory.pipeline.statistics import (
    COARSE,
    Step,
    bucket_start,
    survival_at,
    time_of_survival,
)
from purgatory.pipeline.statistics import bucket as bucket_of

SHOWN_HOURS = 72
"""Rows of the table of percentiles: a year has thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a summary in words, and a table of its figures.

    The page draws it in the browser, from `chart_data`. Summary and table are the chart for readers
    who cannot see the drawing.
    """

    name: str
    title: str
    summary: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The drawn figures, or the most important of them."""


def outcomes_chart(findings: Findings) -> Chart:
    """Return the chart of outcomes by the start of the wait."""
    query = "SELECT outcome, sum(count)::BIGINT FROM found GROUP BY ALL"
    totals = Counter(dict(rows_of(findings.timeline, query)))
    shown = [name for name in OUTCOME_SERIES if totals[name]]
    total = max(1, sum(totals.values()))
    shares = ", ".join(f"{percent(totals[name] / total)} {name}" for name in shown)
    return Chart(
        name="outcomes",
        title="Outcomes over time",
        summary=f"Outcomes by the start of the wait: {shares or 'no operations'}.",
        header=("outcome", "operations", "share"),
        rows=tuple((name, f"{totals[name]:,}", percent(totals[name] / total, 3)) for name in shown),
    )


def parked_chart(load: HourlyLoad) -> Chart | None:
    """Return the heat map of parked operations by day and hour; None if there were none."""
    shown = last_days(load)
    busiest = max(shown, key=lambda hour: shown[hour][0], default=None)
    if busiest is None or not (most := shown[busiest][0]):
        return None
    days, all_days = ({hour.date() for hour in hours} for hours in (shown, load))
    left_out = f" Shown are the last {len(days)} of {len(all_days):,} days."
    return Chart(
        name="parked",
        title="Parked at once",
        summary="Operations that wait at the same time, mean and peak; and the mean of each hour. "
        "An hour that the journal covers only partly counts as a whole one. "
        f"The busiest hour began at {busiest:%Y-%m-%d %H:%M} with {figure(most)}."
        + (left_out if len(all_days) > len(days) else ""),
        header=("hour (UTC)", "parked, mean", "upper bound of the peak"),
        rows=tuple(
            (f"{hour:%Y-%m-%d %H:%M}", figure(mean), f"{peak:,}")
            for hour, (mean, peak) in shown.items()
        ),
    )


def waits_chart(findings: Findings) -> Chart:
    """Return the chart of the distribution of completed waits, by kind."""
    rows = tuple(
        (
            row["kind"],
            *(time_or(row[f"wait_us_{name}"], "") for name in ("p50", "p90", "p99", "max")),
        )
        for row in findings.by_kind[:LISTED_KINDS]
    )
    return Chart(
        name="waits",
        title="Distribution of waits",
        summary="Share of the completed waits of each length; the axis of time is logarithmic, and "
        f"shorter waits are drawn at {duration(LEAST_US)}. {_medians(findings)}"
        f"{findings.left_out}",
        header=("kind", "p50", "p90", "p99", "maximum"),
        rows=rows,
    )


def survival_chart(findings: Findings) -> Chart:
    """Return the chart of survival curves, as if there were no timeout, with 95 % intervals."""
    curves = {kind: findings.survival.get(kind, ()) for kind in findings.kinds}
    timeouts = {row["kind"]: row["timeout_us_p50"] for row in findings.by_kind}
    rows = tuple(
        (
            kind,
            *(_time_of(curve, share) for share in (0.5, 0.1, 0.01)),
            f"{percent(survival_at(curve, timeouts[kind]))} at {duration(timeouts[kind])}",
        )
        for kind, curve in curves.items()
    )
    return Chart(
        name="survival",
        title="Time until a key fires",
        summary="Kaplan-Meier estimate by kind, with 95 % intervals: the share for which no key "
        "has fired yet. Operations that ended otherwise are censored at that time. The "
        "dashed line is the median timeout: the share at this point expires." + findings.left_out,
        header=("kind", "p50", "p90", "p99", "still waiting at the median timeout"),
        rows=rows,
    )


def lateness_chart(findings: Findings) -> Chart | None:
    """Return the chart of the lateness of expired operations; None if none expired."""
    if not {row["kind"] for row in findings.lateness_counts}.intersection(findings.kinds):
        return None
    rows = tuple(
        (
            row["kind"],
            f"{row['expired']:,}",
            *(time_or(row[f"lateness_us_{name}"], "") for name in ("p50", "p99", "p99_9", "max")),
        )
        for row in findings.by_kind[:LISTED_KINDS]
        if row["lateness_us_max"] is not None
    )
    worst = max(row["lateness_us_max"] or 0 for row in findings.by_kind)
    return Chart(
        name="lateness",
        title="Lateness of expired operations",
        summary="Cumulative share of the expired operations by lateness, by kind. The maximum is "
        f"{duration(worst)}.{findings.left_out}",
        header=("kind", "expired", "p50", "p99", "p99.9", "maximum"),
        rows=rows,
    )


def percentiles_chart(findings: Findings) -> Chart | None:
    """Return the chart of percentiles over time; None if no operation has ended."""
    latest = latest_hours(findings.by_hour, findings.kinds)
    if not latest:
        return None
    return Chart(
        name="percentiles",
        title="Waits over time",
        summary="Percentiles of the waits that ended, by the start of the wait; logarithmic. The "
        "page computes them from counts, within 9 %. Those by hour in the table are within 0.2 %, "
        "the latest of waits/by_hour." + findings.left_out,
        header=("hour (UTC)", "kind", *PERCENTS),
        rows=tuple(
            (f"{datetime.fromtimestamp(hour, UTC):%Y-%m-%d %H:%M}", kind, *map(duration, waits))
            for hour, kind, *waits in latest
        ),
    )


def latest_hours(by_hour: Relation, kinds: Iterable[str]) -> list[tuple[int, str, int, int, int]]:
    """Return the last SHOWN_HOURS of some kinds with an operation that ended, by hour and kind.

    Each is the start of the hour in seconds, the kind, and its PERCENTS.
    """
    query = f"""
        SELECT epoch_us(hour) // 1000000 AS start_s, kind, wait_us_p50, wait_us_p90, wait_us_p99
        FROM found
        WHERE wait_us_p50 IS NOT NULL AND list_contains([{texts(kinds)}]::VARCHAR[], kind)
        ORDER BY start_s DESC, kind DESC LIMIT {SHOWN_HOURS}
    """
    return rows_of(by_hour, query)[::-1]


def wait_heat_map(findings: Findings) -> Chart | None:
    """Return the heat map of waits by time and duration; None if no operation has ended."""
    octave = f"greatest(bucket, {bucket_of(LEAST_US)}) // {8 * COARSE}"
    octaves = rows_of(
        findings.timeline,
        f"""
        WITH cells AS (SELECT {octave} AS octave, epoch_us(start) // 1000000 AS start_s,
                              sum(count) AS many
                       FROM found WHERE bucket IS NOT NULL GROUP BY ALL)
        SELECT octave, sum(many)::BIGINT, arg_max(start_s, (many, start_s))
        FROM cells GROUP BY ALL ORDER BY octave
        """,
    )
    if not octaves:
        return None
    return Chart(
        name="heat",
        title="Waits by time and duration",
        summary="Operations by the start of their wait and by its duration; a stronger colour "
        "means more, on a logarithmic scale. Where nothing is drawn, no operation waited so long. "
        f"Shorter waits are drawn at {duration(LEAST_US)}.",
        header=("duration, from", "operations", "most of them from (UTC)"),
        rows=tuple(
            (
                duration(bucket_start(octave * 8 * COARSE)),
                f"{operations:,}",
                f"{datetime.fromtimestamp(busiest, UTC):%Y-%m-%d %H:%M}",
            )
            for octave, operations, busiest in octaves
        ),
    )


def _medians(findings: Findings) -> str:
    parts = [
        f"{row['kind']} p50 {time_or(row['wait_us_p50'], '')}"
        for row in findings.by_kind[: len(findings.kinds)]
        if row["wait_us_p50"] is not None
    ]
    return "; ".join(parts) + "." if parts else "No wait is completed yet."


def _time_of(curve: Sequence[Step], share: float) -> str:
    time_us = time_of_survival(curve, share)
    return "not observed" if time_us is None else duration(time_us)
