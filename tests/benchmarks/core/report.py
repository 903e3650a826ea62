"""The files of a run: its figures as JSON, and a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from tests.benchmarks.comparison.process import Machine
from tests.benchmarks.comparison.row import Comparison, Samples, Spread, Verdict, number
from tests.benchmarks.core.stage import Plan

WIDTH = 960
LABELS = 470
RIGHT = 70
BAR = 16
STEP = 26
TOP = 64

COLOURS = {
    Verdict.MET: "#2e7d4f",
    Verdict.NEARLY_MET: "#b58900",
    Verdict.NOT_MET: "#b3392f",
    Verdict.NONE: "#5b6b7b",
}


def chart(comparisons: Sequence[Comparison], title: str, *, is_compiled: bool) -> str:
    """Return an SVG image of the rows that have a ratio; the scale is logarithmic."""
    shown = [(row, row.times) for row in comparisons if row.times is not None]
    most = max((times.max for _, times in shown), default=1.0)
    height = TOP + STEP * len(shown) + 16
    scale = _Scale(max(10.0, most))
    bars = [
        _bar(row, times, scale, TOP + STEP * position, is_compiled=is_compiled)
        for position, (row, times) in enumerate(shown)
    ]
    return "\n".join([_head(title, height), *scale.lines(height), *bars, "</svg>", ""])


class _Scale:
    """From a tenth of the baseline's figure to `most` times."""

    def __init__(self, most: float) -> None:
        self._decades = math.ceil(math.log10(most)) + 1

    def x(self, times: float) -> float:
        decades = max(0.0, math.log10(max(times, 0.1)) + 1)
        return LABELS + (WIDTH - LABELS - RIGHT) * min(1.0, decades / self._decades)

    def lines(self, height: int) -> list[str]:
        found = []
        for decade in range(self._decades + 1):
            times = 10.0 ** (decade - 1)
            x = self.x(times)
            colour = "#222" if times == 1 else "#ddd"
            found.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 8}" '
                f'stroke="{colour}"/>'
                f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{number(times)} x</text>'
            )
        return found


def _head(title: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>'
    )


def _bar(row: Comparison, times: Spread, scale: _Scale, y: int, *, is_compiled: bool) -> str:
    start, end = sorted((scale.x(1), scale.x(times.median)))
    label = escape(f"{row.title} / {row.baseline}")
    parts = [
        f'<text x="{LABELS - 10}" y="{y + BAR - 4}" text-anchor="end">{label}</text>',
        f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{BAR}" '
        f'fill="{COLOURS[row.verdict]}"/>',
        f'<text x="{end + 6:.1f}" y="{y + BAR - 4}">{number(times.median)} x</text>',
    ]
    if row.target is not None and not row.target.is_limit:
        x = scale.x(row.target.figure(is_compiled=is_compiled))
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + BAR + 3}" '
            f'stroke="#111" stroke-width="2"><title>target</title></line>'
        )
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run."""

    machine: Machine
    plan: Plan
    seconds: int
    comparisons: Sequence[Comparison]
    samples: dict[str, Samples]
    """{stage: {contender: {measure: [figure of each round]}}}."""

    @property
    def is_compiled(self) -> bool:
        """True iff the core ran compiled."""
        return self.machine.form == "compiled"

    def write(self, folder: Path) -> list[Path]:
        """Write the files into `folder`, named for the form that ran; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.machine.form}.{kind}" for kind in ("json", "svg")]
        texts = [json.dumps(self._as_dict(), indent=2) + "\n", self._chart()]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return paths

    def _as_dict(self) -> dict[str, object]:
        return {
            "machine": asdict(self.machine),
            "plan": asdict(self.plan),
            "seconds": self.seconds,
            "rows": [self._row_as_dict(comparison) for comparison in self.comparisons],
            "samples": self.samples,
        }

    def _row_as_dict(self, comparison: Comparison) -> dict[str, object]:
        target = comparison.target
        figure = None if target is None else target.figure(is_compiled=self.is_compiled)
        return asdict(comparison) | {
            "target": figure,
            "target_is_limit": None if target is None else target.is_limit,
        }

    def _chart(self) -> str:
        title = (
            f"Times faster or smaller than the baseline: core {self.machine.form}, "
            f"{self.machine.python.partition(' (')[0]}, {self.plan.mode}"
        )
        return chart(self.comparisons, title, is_compiled=self.is_compiled)
