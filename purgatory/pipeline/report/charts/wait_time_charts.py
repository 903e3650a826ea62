"""Charts of waits over time: percentiles, and a heat map by time and duration."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from purgatory.pipeline.console.formatting import duration
from purgatory.pipeline.report.charts.chart import Chart
from purgatory.pipeline.report.charts.chart_data import LEAST_US
from purgatory.pipeline.report.charts.theme import Palette
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.statistics.histogram import COARSE, bucket_start
from purgatory.pipeline.statistics.histogram import bucket as bucket_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_HOURS = 72
"""Rows of the table of percentiles: a year has thousands."""

_PERCENTS = ("p50", "p90", "p99")


def percentiles_chart(findings: Findings) -> Chart | None:
    """Return the chart of percentiles over time; None if no operation has ended."""
    rows = [row for row in findings.by_hour if row["wait_us_p50"] is not None]
    if not rows:
        return None
    by_kind = {
        kind: sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["hour"])
        for kind in findings.kinds
    }

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for place, (kind, hours) in enumerate(by_kind.items()):
            for name, style in (("p50", "-"), ("p99", ":")):
                axes.plot(
                    [row["hour"] for row in hours],
                    [max(1, row[f"wait_us_{name}"]) for row in hours],
                    style,
                    # A line of one point is not visible.
                    marker="o" if len(hours) == 1 else None,
                    color=palette.of(place),
                    label=f"{kind} {name}",
                    linewidth=1.6,
                )
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda micros, _: duration(micros))
        _time_axis(axes)
        axes.legend(loc="best", ncols=2)

    latest = sorted(
        (row for hours in by_kind.values() for row in hours),
        key=lambda row: (row["hour"], row["kind"]),
    )[-SHOWN_HOURS:]
    return Chart(
        name="percentiles",
        title="Waits over time",
        summary="Percentiles of the waits that ended, by the start of the wait; logarithmic. The "
        "page computes them from counts, within 9 %. Those by hour in the table are within 0.2 %: "
        f"the last {len(latest)} of {len(rows):,} rows of waits/by_hour." + findings.left_out,
        header=("hour (UTC)", "kind", *_PERCENTS),
        rows=tuple(
            (
                f"{row['hour']:%Y-%m-%d %H:%M}",
                row["kind"],
                *(duration(row[f"wait_us_{name}"]) for name in _PERCENTS),
            )
            for row in latest
        ),
        draw=draw,
    )


def wait_heat_map(findings: Findings) -> Chart | None:
    """Return the heat map of waits by time and duration; None if no operation has ended."""
    counts: Counter[tuple[datetime, int]] = Counter()
    for row in findings.timeline:
        if row["bucket"] is not None:
            bucket = max(row["bucket"], bucket_of(LEAST_US)) // COARSE
            counts[row["start"], bucket] += row["count"]
    if not counts:
        return None
    width = timedelta(seconds=findings.timeline[0]["width_s"])
    low, high = (end(bucket for _, bucket in counts) for end in (min, max))
    edges = [max(1, bucket_start(bucket * COARSE)) for bucket in range(low, high + 2)]

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False)
        first, last = (end(start for start, _ in counts) for end in (min, max))
        columns = int((last - first) / width) + 1
        rows = [[float("nan")] * columns for _ in edges[1:]]
        for (start, bucket), count in counts.items():
            rows[bucket - low][int((start - first) / width)] = count
        times = [first + width * place for place in range(columns + 1)]
        least, most = (end(counts.values()) for end in (min, max))
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
        _time_axis(axes)

    by_bucket: Counter[int] = Counter()
    starts: dict[int, Counter[datetime]] = defaultdict(Counter)
    for (start, bucket), count in counts.items():
        by_bucket[bucket // 8] += count
        starts[bucket // 8][start] += count

    def busiest(octave: int) -> datetime:
        return max(starts[octave], key=lambda start: (starts[octave][start], start))

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
                f"{count:,}",
                f"{busiest(octave):%Y-%m-%d %H:%M}",
            )
            for octave, count in sorted(by_bucket.items())
        ),
        draw=draw,
    )


def _time_axis(axes: Axes) -> None:
    axes.xaxis_date(tz=UTC)
    axes.set_xlabel("began to wait (UTC)")
