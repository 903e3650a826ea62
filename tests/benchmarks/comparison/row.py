"""Rows of the table: a measure of ours and of a baseline, with a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from tests.benchmarks.comparison.spread import Spread
from tests.benchmarks.comparison.target import Target, Verdict

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
