"""Charts of waits, survival and lateness, and of waits over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from purgatory.pipeline.console import duration, percent
from purgatory.pipeline.report.charts.chart_data import LEAST_US, Chart, Palette, thinned
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings
from purgatory.pipeline.statistics import (
    COARSE,
    Step,
    bucket_end,
    bucket_start,
    survival_at,
    time_of_survival,
)
from purgatory.pipeline.statistics import bucket as bucket_of
from purgatory.pipeline.waits.columns import PERCENTS, summed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PER_DOUBLING = 4


def waits_chart(findings: Findings) -> Chart:
    """Return the chart of the distribution of completed waits, by kind."""
    by_kind = {kind: _columns(_ended_waits(findings, kind)) for kind in findings.kinds}
    rows = tuple(
        (
            row["kind"],
            *(_duration(row[f"wait_us_{name}"]) for name in ("p50", "p90", "p99", "max")),
        )
        for row in findings.by_kind[:LISTED_KINDS]
    )

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for place, (kind, columns) in enumerate(by_kind.items()):
            if columns:
                times, shares = zip(*columns, strict=True)
                axes.step(
                    times, shares, where="mid", color=palette.of(place), label=kind, linewidth=1.6
                )
                axes.fill_between(
                    times, shares, step="mid", color=palette.of(place), alpha=0.12, linewidth=0
                )
        _time_axis(axes, "waited")
        axes.set_ylabel("share of the kind's completed waits")
        axes.yaxis.set_major_formatter(_percentage)
        axes.set_ylim(bottom=0)
        _legend(axes)

    return Chart(
        name="waits",
        title="Distribution of waits",
        summary="Share of the completed waits of each length; the axis of time is logarithmic, and "
        f"shorter waits are drawn at {duration(LEAST_US)}. {_medians(findings)}"
        f"{findings.left_out}",
        header=("kind", "p50", "p90", "p99", "maximum"),
        rows=rows,
        draw=draw,
    )


def survival_chart(findings: Findings) -> Chart:
    """Return the chart of survival curves, as if there were no timeout, with 95 % intervals."""
    curves = {kind: findings.survival.get(kind, ()) for kind in findings.kinds}
    lines = {kind: thinned(curve) for kind, curve in curves.items()}
    timeouts = {row["kind"]: row["timeout_us_p50"] for row in findings.by_kind}
    rows = tuple(
        (
            kind,
            *(_time_of(curve, share) for share in (0.5, 0.1, 0.01)),
            f"{percent(survival_at(curve, timeouts[kind]))} at {duration(timeouts[kind])}",
        )
        for kind, curve in curves.items()
    )

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for place, (kind, curve) in enumerate(lines.items()):
            if not curve:
                continue
            times = [max(step.time_us, LEAST_US) for step in curve]
            colour = palette.of(place)
            lows, highs = [step.low for step in curve], [step.high for step in curve]
            axes.fill_between(times, lows, highs, step="post", color=colour, alpha=0.2, linewidth=0)
            survivals = [step.survival for step in curve]
            axes.step(times, survivals, where="post", color=colour, label=kind, linewidth=1.6)
            axes.axvline(timeouts[kind], linestyle="--", color=colour, linewidth=1)
        _time_axis(axes, "time since the start of the wait")
        axes.set_ylabel("still waiting, if only fires ended waits")
        axes.yaxis.set_major_formatter(_percentage)
        axes.set_ylim(0, 1.02)
        _legend(axes)

    return Chart(
        name="survival",
        title="Time until a key fires",
        summary="Kaplan-Meier estimate by kind, with 95 % intervals: the share for which no key "
        "has fired yet. Operations that ended otherwise are censored at that time. The "
        "dashed line is the median timeout: the share at this point expires." + findings.left_out,
        header=("kind", "p50", "p90", "p99", "still waiting at the median timeout"),
        rows=rows,
        draw=draw,
        height=3.9,
    )


def lateness_chart(findings: Findings) -> Chart | None:
    """Return the chart of the lateness of expired operations; None if none expired."""
    by_kind = {
        kind: columns
        for kind in findings.kinds
        if (columns := _cumulated(row for row in findings.lateness_counts if row["kind"] == kind))
    }
    if not by_kind:
        return None
    rows = tuple(
        (
            row["kind"],
            f"{row['expired']:,}",
            *(_duration(row[f"lateness_us_{name}"]) for name in ("p50", "p99", "p99_9", "max")),
        )
        for row in findings.by_kind[:LISTED_KINDS]
        if row["lateness_us_max"] is not None
    )

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for place, kind in enumerate(findings.kinds):
            if kind in by_kind:
                times, shares = zip(*by_kind[kind], strict=True)
                axes.step(
                    [max(time, 10) for time in times],
                    shares,
                    where="post",
                    color=palette.of(place),
                    label=kind,
                    linewidth=1.6,
                )
        _time_axis(axes, "at most this long after the deadline")
        axes.set_ylabel("share of expired operations")
        axes.yaxis.set_major_formatter(_percentage)
        axes.set_ylim(0, 1.02)
        _legend(axes)

    worst = max(row["lateness_us_max"] or 0 for row in findings.by_kind)
    return Chart(
        name="lateness",
        title="Lateness of expired operations",
        summary="Cumulative share of the expired operations by lateness, by kind. The maximum is "
        f"{duration(worst)}.{findings.left_out}",
        header=("kind", "expired", "p50", "p99", "p99.9", "maximum"),
        rows=rows,
        draw=draw,
        height=3.0,
    )


def _ended_waits(findings: Findings, kind: str) -> Counter[int]:
    """Return the completed waits of a kind, counted by quarters of a doubling."""
    counts: Counter[int] = Counter()
    for row in findings.wait_counts:
        if row["kind"] == kind and row["bucket"] is not None and row["outcome"] != "open":
            counts[_column(bucket_start(row["bucket"]))] += row["count"]
    return counts


def _column(micros: int) -> int:
    """Return the index of the quarter of a doubling that holds a time."""
    micros = max(micros, LEAST_US)
    bits = micros.bit_length() - 1
    return bits * _PER_DOUBLING + ((micros - (1 << bits)) * _PER_DOUBLING >> bits)


def _columns(counts: Counter[int]) -> list[tuple[float, float]]:
    """Return time and share of each column, empty ones included."""
    total = sum(counts.values())
    if not total:
        return []
    span = range(min(counts) - 1, max(counts) + 2)
    return [(_middle(column), counts[column] / total) for column in span]


def _middle(column: int) -> float:
    bits, part = divmod(column, _PER_DOUBLING)
    return float((1 << bits) * (1 + (part + 0.5) / _PER_DOUBLING))


def _cumulated(rows: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    ordered = sorted((bucket_end(row["bucket"]), row["count"]) for row in rows)
    total = sum(count for _, count in ordered)
    sums = accumulate(count for _, count in ordered)
    return [(float(time), upto / total) for (time, _), upto in zip(ordered, sums, strict=True)]


def _time_axis(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(lambda micros, _: duration(micros))
    axes.xaxis.set_minor_formatter(lambda *_: "")


def _percentage(share: float, place: float) -> str:
    """Return the label of a tick, without zeros at its end."""
    return f"{share * 100:.4g}%"


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")


def _medians(findings: Findings) -> str:
    parts = [
        f"{row['kind']} p50 {_duration(row['wait_us_p50'])}"
        for row in findings.by_kind[: len(findings.kinds)]
        if row["wait_us_p50"] is not None
    ]
    return "; ".join(parts) + "." if parts else "No wait is completed yet."


def _time_of(curve: Sequence[Step], share: float) -> str:
    time_us = time_of_survival(curve, share)
    return "not observed" if time_us is None else duration(time_us)


def _duration(micros: float | None) -> str:
    return "" if micros is None else duration(micros)


SHOWN_HOURS = 72
"""Rows of the table of percentiles: a year has thousands."""


def percentiles_chart(findings: Findings) -> Chart | None:
    """Return the chart of percentiles over time; None if no operation has ended."""
    found = findings.by_hour
    if not len(found.kind):
        return None

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for place, kind in enumerate(findings.kinds):
            of_kind = found.of_kind(kind)
            # Any: the axis converts times.
            hours: Any = [datetime.fromtimestamp(hour, UTC) for hour in of_kind.hour_s.tolist()]
            for name, style in (("p50", "-"), ("p99", ":")):
                axes.plot(
                    hours,
                    np.maximum(of_kind.percentiles[name], 1),
                    style,
                    # A line of one point is not visible.
                    marker="o" if len(hours) == 1 else None,
                    color=palette.of(place),
                    label=f"{kind} {name}",
                    linewidth=1.6,
                )
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda micros, _: duration(micros))
        _label_time_axis(axes)
        axes.legend(loc="best", ncols=2)

    latest = found.where(set(findings.kinds).__contains__).latest(SHOWN_HOURS)
    return Chart(
        name="percentiles",
        title="Waits over time",
        summary="Percentiles of the waits that ended, by the start of the wait; logarithmic. The "
        "page computes them from counts, within 9 %. Those by hour in the table are within 0.2 %: "
        f"the last {len(latest)} of {len(found.kind):,} rows of waits/by_hour." + findings.left_out,
        header=("hour (UTC)", "kind", *PERCENTS),
        rows=tuple(
            (f"{datetime.fromtimestamp(hour, UTC):%Y-%m-%d %H:%M}", kind, *map(duration, waits))
            for hour, kind, waits in latest
        ),
        draw=draw,
    )


def wait_heat_map(findings: Findings) -> Chart | None:
    """Return the heat map of waits by time and duration; None if no operation has ended."""
    found = findings.timeline
    is_known = found.bucket >= 0
    if not is_known.any():
        return None
    start_s, count = found.start_s[is_known], found.count[is_known]
    bucket = np.maximum(found.bucket[is_known], bucket_of(LEAST_US)) // COARSE
    low, high = int(bucket.min()), int(bucket.max())
    edges = [max(1, bucket_start(place * COARSE)) for place in range(low, high + 2)]

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False)
        (starts, buckets), sums = summed(count, start_s, bucket)
        first, last = int(starts[0]), int(starts[-1])
        columns = (last - first) // found.width_s + 1
        rows = np.full((len(edges) - 1, columns), np.nan)
        rows[buckets - low, (starts - first) // found.width_s] = sums
        seconds = range(first, last + 2 * found.width_s, found.width_s)
        # Any: the axis converts times.
        times: Any = [datetime.fromtimestamp(second, UTC) for second in seconds]
        least, most = int(sums.min()), int(sums.max())
        # A scale of one value has no colours.
        ends: dict[str, Any] = {"vmin": least, "vmax": max(most, least + 1)}
        drawn = axes.pcolormesh(
            times, edges, rows, norm="log", **ends, cmap="viridis_r", rasterized=True
        )
        scale = figure.colorbar(drawn, ax=axes, pad=0.01, label="operations")
        scale.ax.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        scale.ax.yaxis.set_minor_formatter(lambda *_: "")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda micros, _: duration(micros))
        _label_time_axis(axes)

    busiest: dict[int, tuple[int, int]] = {}
    (octaves, starts), sums = summed(count, bucket // 8, start_s)
    for octave, *most in zip(octaves.tolist(), sums.tolist(), starts.tolist(), strict=True):
        busiest[octave] = max(busiest.get(octave, (0, 0)), (most[0], most[1]))
    (octaves,), sums = summed(count, bucket // 8)

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
                f"{datetime.fromtimestamp(busiest[octave][1], UTC):%Y-%m-%d %H:%M}",
            )
            for octave, operations in zip(octaves.tolist(), sums.tolist(), strict=True)
        ),
        draw=draw,
    )


def _label_time_axis(axes: Axes) -> None:
    axes.xaxis_date(tz=UTC)
    axes.set_xlabel("began to wait (UTC)")
