"""The contenders of a stage, each in its process, taking turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Self

import purgatory
from tests.benchmarks.comparison.process import Collector
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.core.stage import Figures, Step
from tests.benchmarks.core.stages import STAGES, contenders

# The library that this process runs, compiled or not, is the one to measure; the benchmark itself
# is always in the checkout.
_PATHS = [
    str(Path(purgatory.__file__).resolve().parent.parent),
    str(Path(__file__).resolve().parents[3]),
]


class Entrant:
    """A contender's process."""

    def __init__(self, stage: str, name: str, collector: Collector) -> None:
        paths = [*_PATHS, os.environ.get("PYTHONPATH", "")]
        self._name = f"{stage}: {name}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.benchmarks.core.worker", stage, name, collector],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, step: Step) -> None:
        """Start `step`."""
        stdin = _open(self._process.stdin)
        stdin.write(json.dumps({"do": step.do, "count": step.count}) + "\n")
        stdin.flush()

    def finish(self) -> Figures:
        """Wait for the step and return its figures."""
        line = _open(self._process.stdout).readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(f"the contender {self._name!r} ended with status {status}")
        figures: Figures = json.loads(line)
        return figures

    def leave(self) -> None:
        """Kill the process: freeing a million objects one by one would take long."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            _open(stream).close()


class Race:
    """Runs the steps of one stage, in processes that end with a `with`."""

    def __init__(self, stage: str, collector: Collector, on_step: Callable[[Step], object]) -> None:
        self._on_step = on_step
        self._entrants = {
            name: Entrant(stage, name, collector) for name in contenders(STAGES[stage])
        }
        self.samples: Samples = {name: {} for name in self._entrants}

    def __enter__(self) -> Self:
        """Return the race."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End every process. Idempotent."""
        for entrant in self._entrants.values():
            entrant.leave()

    def run(self, steps: Iterable[Step]) -> None:
        """Run `steps`, one contender after the other, or all at once if a step is not timed."""
        for step in steps:
            self._on_step(step)
            if not step.is_timed:
                self.begin(step)
                self.finish(step)
                continue
            for name, entrant in self._taking_part(step):
                entrant.begin(step)
                self._note(name, entrant.finish())

    def begin(self, step: Step) -> None:
        """Start `step` in all contenders that take part."""
        for _, entrant in self._taking_part(step):
            entrant.begin(step)

    def finish(self, step: Step) -> None:
        """Wait for `step` in all contenders that take part."""
        for name, entrant in self._taking_part(step):
            self._note(name, entrant.finish())

    def _taking_part(self, step: Step) -> list[tuple[str, Entrant]]:
        return [item for item in self._entrants.items() if item[0] not in step.without]

    def _note(self, name: str, figures: Figures) -> None:
        for measure, figure in figures.items():
            self.samples[name].setdefault(measure, []).append(figure)


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
