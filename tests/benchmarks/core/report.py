"""The files of a run: its figures as JSON, and the chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.comparison.machine import Machine
from tests.benchmarks.comparison.row import Comparison, Samples
from tests.benchmarks.core.chart import chart
from tests.benchmarks.core.plan import Plan


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
