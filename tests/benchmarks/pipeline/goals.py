"""What a run of the benchmark has to reach, in terms that do not depend on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tests.benchmarks.pipeline.measured_run import MeasuredRun

LEAST_OPERATIONS = 10_000_000
"""With fewer, Spark's start, Java's warming up and the merges of rollups are most of a run."""

IDLE = 0.5
"""The load up to which seconds count."""

MOST_CPU = {"spark": 3.0, "duckdb": 1.5}
"""Times that of the SQL by hand, on DuckDB."""
MOST_SECONDS = 1.5
MOST_GROWTH = 1.3
"""Of the CPU of an operation, and of memory, from one size to a larger one."""
LEAST_SPEEDUP = 1.7
"""Of a replay on two cores, beside one process."""


def load_warning(load: float) -> str:
    """Return a line on the load when a run began; "" if seconds count."""
    if load <= IDLE:
        return ""
    return f"The load was {load:.1f} when it began: look at CPU, not at seconds.\n"


def missed(found: Mapping[int, Mapping[str, MeasuredRun]], *, is_idle: bool) -> list[str]:
    """Return a sentence for each goal that was missed; seconds count on an idle machine only."""
    sentences = []
    large = {size: runs for size, runs in found.items() if size >= LEAST_OPERATIONS}
    for size, runs in large.items():
        for engine, most_cpu in MOST_CPU.items() if "by hand" in runs else ():
            if engine not in runs:
                continue
            run, by_hand = runs[engine], runs["by hand"]
            ratios = [("CPU", run.cpu_s / by_hand.cpu_s, most_cpu)]
            if is_idle:
                ratios.append(("time", _seconds(run) / _seconds(by_hand), MOST_SECONDS))
            sentences += [
                f"{size:,} operations: {engine} took {ratio:.2f} times the {what} of the SQL by "
                f"hand, and the goal is {most:g}."
                for what, ratio, most in ratios
                if ratio > most
            ]
    sizes = sorted(size for size, runs in large.items() if "spark" in runs)
    for less, more in pairwise(sizes):
        before, after = large[less]["spark"], large[more]["spark"]
        growth = {
            "CPU of an operation": after.cpu_s / more / (before.cpu_s / less),
            "memory": after.memory_bytes / before.memory_bytes,
        }
        sentences += [
            f"{more:,} operations: the {what} is {ratio:.2f} times that with {less:,}, and the "
            f"goal is {MOST_GROWTH:g}."
            for what, ratio in growth.items()
            if ratio > MOST_GROWTH
        ]
    return sentences


def _seconds(run: MeasuredRun) -> float:
    return run.outcomes_s + run.waits_s
