"""Charts of outcomes over time, of concurrency by hour, and of hot keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from purgatory.pipeline.console import counted, duration, figure, percent, short
from purgatory.pipeline.report.charts.chart_data import OUTCOME_SERIES, Chart, Palette
from purgatory.pipeline.report.findings import Findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_KEYS = 20
SHOWN_DAYS = 31


def outcomes_chart(findings: Findings) -> Chart:
    """Return the chart of outcomes by the start of the wait."""
    found = findings.timeline
    width = timedelta(seconds=found.width_s)
    totals = found.totals()
    shown = [name for name in OUTCOME_SERIES if totals[name]]

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        seconds, places = np.unique(found.start_s, return_inverse=True)
        starts = [datetime.fromtimestamp(second, UTC) for second in seconds.tolist()]
        bottoms = np.zeros(len(starts))
        for name in shown:
            count = np.where(found.outcome == found.outcomes.index(name), found.count, 0)
            heights = np.bincount(places, count, len(starts))
            axes.bar(
                starts,  # type: ignore[arg-type] # the axis converts times
                heights,
                width=width,  # type: ignore[arg-type]
                bottom=bottoms,
                align="edge",
                color=palette.outcome(name),
                label=name,
                linewidth=0,
            )
            bottoms += heights
        axes.xaxis_date(tz=UTC)
        axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        axes.set_xlabel("began to wait (UTC)")
        axes.set_ylabel(f"operations in {duration(width / timedelta(microseconds=1))}")
        if shown:
            figure.legend(loc="outside upper center", ncols=len(shown))

    total = max(1, sum(totals.values()))
    shares = ", ".join(f"{percent(totals[name] / total)} {name}" for name in shown)
    return Chart(
        name="outcomes",
        title="Outcomes over time",
        summary=f"Outcomes by the start of the wait: {shares or 'no operations'}.",
        header=("outcome", "operations", "share"),
        rows=tuple((name, f"{totals[name]:,}", percent(totals[name] / total, 3)) for name in shown),
        draw=draw,
    )


@dataclass(frozen=True, slots=True)
class HourlyLoad:
    """Parked operations by hour."""

    means: dict[datetime, float]
    """In the order of time."""
    peaks: dict[datetime, int]
    """Upper bounds: the peaks of kinds within a minute are added."""

    @property
    def days(self) -> list[date]:
        """The days with an operation."""
        return sorted({hour.date() for hour in self.means})

    def last_days(self) -> tuple[list[date], dict[datetime, float]]:
        """Return the SHOWN_DAYS last days, and the means of their hours."""
        days = self.days[-SHOWN_DAYS:]
        are_shown = {*days}
        means = {hour: mean for hour, mean in self.means.items() if hour.date() in are_shown}
        return days, means


def hourly_load(findings: Findings) -> HourlyLoad:
    """Return the parked operations by hour."""
    parked = findings.parked
    minutes, places = parked.distinct
    hours, first = np.unique(minutes // 60, return_index=True)
    if not len(hours):
        return HourlyLoad({}, {})
    means = np.bincount(places, parked.mean / 60, len(minutes))
    peaks = np.bincount(places, parked.peak, len(minutes))
    starts = [datetime.fromtimestamp(hour * 3_600, UTC) for hour in hours.tolist()]
    return HourlyLoad(
        dict(zip(starts, np.add.reduceat(means, first).tolist(), strict=True)),
        dict(zip(starts, np.maximum.reduceat(peaks, first).astype(int).tolist(), strict=True)),
    )


def parked_chart(findings: Findings, load: HourlyLoad) -> Chart | None:
    """Return the heat map of parked operations by day and hour; None if there were none."""
    days, shown = load.last_days()
    most = max(shown.values(), default=0)
    if not most:
        return None

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False)
        places = {day: place for place, day in enumerate(days)}
        rows = [[float("nan")] * 24 for _ in days]
        for hour, mean in shown.items():
            rows[places[hour.date()]][hour.hour] = max(mean, most / 1_000)
        drawn = axes.pcolormesh(rows, norm="log", cmap="viridis_r", edgecolors="none")
        scale = figure.colorbar(drawn, ax=axes, pad=0.01)
        for set_formatter in (
            scale.ax.yaxis.set_major_formatter,
            scale.ax.yaxis.set_minor_formatter,
        ):
            set_formatter(lambda mean, _: short(mean))
        axes.set_ylim(len(days), 0)
        axes.set_xticks([hour + 0.5 for hour in range(24)], [f"{hour:02d}" for hour in range(24)])
        axes.set_yticks([place + 0.5 for place in range(len(days))], [f"{day}" for day in days])
        axes.tick_params(length=0)
        axes.set_xlabel("hour of the day (UTC)")

    left_out = len(load.days) - len(days)
    busiest = max(shown, key=lambda hour: shown[hour])
    return Chart(
        name="parked",
        title="Parked at once",
        summary="Operations that wait at the same time, mean and peak; and the mean of each hour. "
        "An hour that the journal covers only partly counts as a whole one. "
        f"The busiest hour began at {busiest:%Y-%m-%d %H:%M} with {figure(most)}."
        + (f" Shown are the last {len(days)} of {len(load.days):,} days." if left_out else ""),
        header=("hour (UTC)", "parked, mean", "upper bound of the peak"),
        rows=tuple(
            (f"{hour:%Y-%m-%d %H:%M}", figure(mean), f"{load.peaks[hour]:,}")
            for hour, mean in shown.items()
        ),
        draw=draw,
        height=1.1 + 0.32 * len(days),
    )


def hot_keys_chart(findings: Findings) -> Chart | None:
    """Return the chart of the most frequent keys; None if there are no keys."""
    shown = findings.hot_keys[:SHOWN_KEYS]
    if not shown:
        return None

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        places = list(range(len(shown)))
        for name, lefts in (
            ("fired", [0] * len(shown)),
            ("expired", [row["fired"] for row in shown]),
        ):
            widths = [row[name] for row in shown]
            axes.barh(places, widths, left=lefts, color=palette.outcome(name), label=name)
        rest = [row["operations"] - row["fired"] - row["expired"] for row in shown]
        lefts = [row["fired"] + row["expired"] for row in shown]
        axes.barh(places, rest, left=lefts, color=palette.outcome("open"), label="neither")
        axes.set_yticks(places, [_cut(row["key"]) for row in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.locator_params(axis="x", integer=True, nbins=6)
        axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        axes.set_xlabel("operations")
        axes.legend(loc="lower right")

    first = shown[0]
    return Chart(
        name="hot-keys",
        title="Hot keys",
        summary=f"The {counted(len(shown), 'key')} with most operations. The first is "
        f"{first['key']} with {first['operations']:,}, {percent(first['share'])} of all; "
        "an operation with two keys counts for both.",
        header=("key", "operations", "share of all", "fired", "expired", "mean wait"),
        rows=tuple(
            (
                row["key"],
                f"{row['operations']:,}",
                percent(row["share"], 3),
                f"{row['fired']:,}",
                f"{row['expired']:,}",
                "" if row["wait_us_mean"] is None else duration(row["wait_us_mean"]),
            )
            for row in shown
        ),
        draw=draw,
        height=1.0 + 0.21 * len(shown),
    )


def _cut(key: str) -> str:
    return key if len(key) <= 32 else f"{key[:31]}…"
