"""Charts of outcomes over time, of concurrency by hour, and of hot keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from purgatory.pipeline.console.formatting import counted, duration, figure, percent
from purgatory.pipeline.report.drawing import Chart
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.report.theme import OUTCOME_SERIES, Palette

SHOWN_KEYS = 20
SHOWN_DAYS = 31


def outcomes_chart(findings: Findings) -> Chart:
    """Return the chart of outcomes by the start of the wait."""
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    for row in findings.timeline:
        counts[row["start"]][row["outcome"]] += row["count"]
    starts = sorted(counts)
    width = timedelta(seconds=findings.timeline[0]["width_s"] if findings.timeline else 60)
    totals = sum(counts.values(), Counter[str]())
    shown = [name for name in OUTCOME_SERIES if totals[name]]

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        bottoms = [0] * len(starts)
        for name in shown:
            heights = [counts[start][name] for start in starts]
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
            bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call] # matplotlib's
        axes.xaxis_date(tz=UTC)
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
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


def heat_map(findings: Findings) -> Chart | None:
    """Return the heat map of parked operations by day and hour; None if there were none."""
    sums: Counter[datetime] = Counter()
    peaks: Counter[datetime] = Counter()
    minutes: Counter[datetime] = Counter()
    for row in findings.parked:
        hour = row["minute"].replace(minute=0)
        sums[hour] += row["parked_mean"] / 60
        minutes[row["minute"]] += row["parked_peak"]
    for minute, peak in minutes.items():
        hour = minute.replace(minute=0)
        peaks[hour] = max(peaks[hour], peak)
    all_days = sorted({hour.date() for hour in sums})
    days = all_days[-SHOWN_DAYS:]
    shown = {hour: mean for hour, mean in sorted(sums.items()) if hour.date() in set(days)}
    most = max(shown.values(), default=0)
    if not most:
        return None

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False)
        for hour, mean in shown.items():
            x, y = hour.hour, days.index(hour.date())
            share = mean / most
            axes.add_patch(
                Rectangle((x, y), 1, 1, facecolor=palette.series[0], alpha=max(share, 0.03))
            )
            # Readable on a strong colour.
            colour = palette.paper if share > 0.55 else palette.ink
            axes.text(
                x + 0.5, y + 0.5, _short(mean), ha="center", va="center", size=7, color=colour
            )
        axes.set_xlim(0, 24)
        axes.set_ylim(len(days), 0)
        axes.set_xticks([hour + 0.5 for hour in range(24)], [f"{hour:02d}" for hour in range(24)])
        axes.set_yticks([place + 0.5 for place in range(len(days))], [f"{day}" for day in days])
        axes.tick_params(length=0)
        axes.set_xlabel("hour of the day (UTC)")

    left_out = len(all_days) - len(days)
    busiest = max(shown, key=lambda hour: shown[hour])
    return Chart(
        name="parked",
        title="Parked operations, by hour",
        summary="Mean number of parked operations in each hour; a stronger colour means more. "
        "An hour that the journal covers only partly counts as a whole one. "
        f"The busiest hour began at {busiest:%Y-%m-%d %H:%M} with {figure(most)}."
        + (f" Shown are the last {len(days)} of {len(all_days):,} days." if left_out else ""),
        header=("hour (UTC)", "parked, mean", "upper bound of the peak"),
        rows=tuple(
            (f"{hour:%Y-%m-%d %H:%M}", figure(mean), f"{peaks[hour]:,}")
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
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


def _short(count: float) -> str:
    if count >= 9_950:
        return f"{count / 1000:,.0f}k"
    if count >= 995:
        return f"{count / 1000:.1f}k"
    if 0 < count < 0.05:
        return "<0.1"
    return f"{count:.0f}" if count >= 9.95 else f"{count:.1f}"


def _cut(key: str) -> str:
    return key if len(key) <= 32 else f"{key[:31]}…"
