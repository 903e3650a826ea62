"""The printed table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.benchmarks.comparison.row import Comparison
from tests.benchmarks.comparison.spread import Spread
from tests.benchmarks.comparison.target import Verdict

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
