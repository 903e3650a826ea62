"""Rows of the printed table: a measure of ours and of a baseline, with a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the minimum and the maximum of some rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Return the spread of at least one figure."""
        return cls(median(figures), min(figures), max(figures))


# Below this part of a target it is not met; between this and all of it, it is met with a remark.
TOLERANCE = 0.8


class Verdict(StrEnum):
    """The relation of a figure to its target."""

    MET = "met"
    NEARLY_MET = "met at 80 %"
    NOT_MET = "not met"
    NONE = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure for each form of the core: at least that many times the baseline, or at most it."""

    compiled: float
    plain: float
    is_limit: bool = False
    """True: an upper limit of our own figure."""

    def figure(self, *, is_compiled: bool) -> float:
        """Return the target of a form."""
        return self.compiled if is_compiled else self.plain

    def judge(self, figure: float, *, is_compiled: bool) -> Verdict:
        """Return whether `figure` reaches the target."""
        target = self.figure(is_compiled=is_compiled)
        if self.is_limit:
            reached = target / figure if figure > 0 else 1.0
        else:
            reached = figure / target
        if reached >= 1:
            return Verdict.MET
        return Verdict.NEARLY_MET if reached >= TOLERANCE else Verdict.NOT_MET


Samples = dict[str, dict[str, list[float]]]
"""{contender: {measure: [figure of each round]}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A comparison to be made. Less is better in every measure."""

    title: str
    """May name sizes of the plan in braces."""
    stage: str
    measure: str
    unit: str
    baseline: str | None = None
    target: Target | None = None
    ours: str = "purgatory"
    floor: str | None = None
    """A contender whose figure is subtracted from both, as the title mentions."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a row."""

    title: str
    stage: str
    unit: str
    ours: Spread
    baseline: str | None
    theirs: Spread | None
    times: Spread | None
    """The ratio of the baseline's figure to ours, round by round."""
    target: Target | None
    verdict: Verdict


def compare(
    row: Row, samples: Samples, sizes: Mapping[str, object], *, is_compiled: bool
) -> Comparison | None:
    """Return the result of `row`, or None if one of its contenders cannot run here."""
    names = {row.ours, row.baseline, row.floor} - {None}
    if not names <= samples.keys():
        return None
    ours = _figures(row, row.ours, samples)
    theirs = None if row.baseline is None else _figures(row, row.baseline, samples)
    times = _times(ours, theirs)
    return Comparison(
        title=row.title.format_map(sizes),
        stage=row.stage,
        unit=row.unit,
        ours=Spread.of(ours),
        baseline=row.baseline,
        theirs=None if theirs is None else Spread.of(theirs),
        times=times,
        target=row.target,
        verdict=_verdict(row.target, Spread.of(ours), times, is_compiled=is_compiled),
    )


def _figures(row: Row, name: str, samples: Samples) -> list[float]:
    figures = samples[name][row.measure]
    floor = repeat(0.0) if row.floor is None else samples[row.floor][row.measure]
    # strict=False: the zeros have no end.
    return [figure - least for figure, least in zip(figures, floor, strict=False)]


def _times(ours: list[float], theirs: list[float] | None) -> Spread | None:
    if theirs is None:
        return None
    # On a busy machine the difference may be zero or negative.
    times = [their / our for our, their in zip(ours, theirs, strict=True) if our > 0]
    return Spread.of(times) if times else None


def _verdict(
    target: Target | None, ours: Spread, times: Spread | None, *, is_compiled: bool
) -> Verdict:
    if target is None:
        return Verdict.NONE
    if target.is_limit:
        return target.judge(ours.median, is_compiled=is_compiled)
    # No ratio: our cost is too small to be measured.
    return Verdict.MET if times is None else target.judge(times.median, is_compiled=is_compiled)


HEADERS = ("", "purgatory", "baseline", "", "times", "target", "")


def table(comparisons: Iterable[Comparison], *, is_compiled: bool) -> str:
    """Return the comparisons as text, a line each; medians with minimum and maximum in brackets."""
    lines: list[Sequence[str]] = [HEADERS]
    title = ""
    for comparison in comparisons:
        cells = _cells(comparison, is_compiled=is_compiled)
        # A row with several baselines has one title, and the same figure of ours.
        lines.append(["", "", *cells[2:]] if comparison.title == title else cells)
        title = comparison.title
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(comparison: Comparison, *, is_compiled: bool) -> list[str]:
    return [
        comparison.title,
        figures(comparison.ours, comparison.unit),
        comparison.baseline or "",
        figures(comparison.theirs, comparison.unit) if comparison.theirs else "",
        figures(comparison.times, "x") if comparison.times else "",
        _target(comparison, is_compiled=is_compiled),
        "" if comparison.verdict is Verdict.NONE else comparison.verdict,
    ]


def figures(spread: Spread, unit: str) -> str:
    """Return a spread as text, such as "82 ns (80-85)"; without brackets where it is one figure."""
    median = f"{number(spread.median)} {unit}".strip()
    if spread.min == spread.max:
        return median
    return f"{median} ({number(spread.min)}-{number(spread.max)})"


def number(figure: float) -> str:
    """Return a figure with about three digits: 0.35, 4.2, 82, 1,575."""
    if figure == round(figure) or abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"


def _target(comparison: Comparison, *, is_compiled: bool) -> str:
    target = comparison.target
    if target is None:
        return ""
    figure = number(target.figure(is_compiled=is_compiled))
    return f"<= {figure} {comparison.unit}".strip() if target.is_limit else f">= {figure} x"
