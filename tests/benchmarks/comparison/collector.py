"""The garbage collector, as in production."""

from __future__ import annotations

import gc
from enum import StrEnum
from typing import Self

from tests.benchmarks.comparison.stopwatch import cpu_ns

THRESHOLD = (100_000, 50, 50)


class Collector(StrEnum):
    """The settings of the garbage collector, which is on and the same for all contenders."""

    SERVICE = "service"
    """As the service sets it and the docs advise: frozen after the start, higher thresholds."""
    PYTHON = "python"
    """Python's defaults."""

    def apply(self) -> None:
        """Set the collector of this process."""
        if self is Collector.SERVICE:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*THRESHOLD)

    def description(self) -> str:
        """Return a description of the settings."""
        if self is Collector.SERVICE:
            return f"on, frozen after the start, thresholds {THRESHOLD}, as in the service"
        return f"on, thresholds {gc.get_threshold()}, as Python sets it"


class CollectorPauses:
    """Adds up the CPU time of the collector, in `total_ns`."""

    __slots__ = ("_started_ns", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._started_ns = 0

    def __enter__(self) -> Self:
        """Start counting."""
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop counting."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now_ns = cpu_ns()
        if phase == "start":
            self._started_ns = now_ns
        else:
            self.total_ns += now_ns - self._started_ns
