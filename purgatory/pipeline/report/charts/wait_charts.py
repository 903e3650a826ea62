"""Charts of waits, survival and lateness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from purgatory.pipeline.console.formatting import duration, percent
from purgatory.pipeline.report.charts.chart import Chart
from purgatory.pipeline.report.charts.chart_data import LEAST_US, thinned
from purgatory.pipeline.report.charts.theme import Palette
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings
from purgatory.pipeline.statistics.histogram import bucket_end, bucket_start
from purgatory.pipeline.statistics.survival import Step, survival_at, time_of_survival

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
