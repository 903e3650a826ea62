"""Charts of waits over time: percentiles, and a heat map by time and duration."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from purgatory.pipeline.console.formatting import duration
from purgatory.pipeline.report.charts.chart import Chart
from purgatory.pipeline.report.charts.chart_data import LEAST_US
from purgatory.pipeline.report.charts.theme import Palette
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.statistics.histogram import COARSE, bucket_start
from purgatory.pipeline.statistics.histogram import bucket as bucket_of
from purgatory.pipeline.waits.hourly_waits import PERCENTS
from purgatory.pipeline.waits.timeline_counts import summed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        _time_axis(axes)
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
        _time_axis(axes)

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


def _time_axis(axes: Axes) -> None:
    axes.xaxis_date(tz=UTC)
    axes.set_xlabel("began to wait (UTC)")
