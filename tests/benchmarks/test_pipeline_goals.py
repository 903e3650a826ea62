"""The goals of `make bench-pipeline`."""

from __future__ import annotations

from tests.benchmarks.pipeline.goals import missed
from tests.benchmarks.pipeline.measured_run import MeasuredRun


def run(operations: int, *, seconds: float, cpu_s: float, memory: int = 1_000) -> MeasuredRun:
    return MeasuredRun(seconds / 2, seconds / 2, cpu_s, memory, operations)


def test_a_goal_that_is_missed_is_named() -> None:
    """CPU at any load, seconds on an idle machine, growth from one size to the next."""
    ten, fifty = 10_000_000, 50_000_000
    hand = run(ten, seconds=100, cpu_s=150)
    good = {ten: {"spark": run(ten, seconds=149, cpu_s=440), "by hand": hand}}
    assert missed(good, is_idle=True) == []
    bad = {ten: {"spark": run(ten, seconds=151, cpu_s=460), "by hand": hand}}
    assert len(missed(bad, is_idle=True)) == 2
    assert missed(bad, is_idle=False) == [
        "10,000,000 operations: spark took 3.07 times the CPU of the SQL by hand, "
        "and the goal is 3."
    ]
    slow = {ten: {"duckdb": run(ten, seconds=100, cpu_s=240), "by hand": hand}}
    assert missed(slow, is_idle=True)[0].startswith("10,000,000 operations: duckdb took 1.60 times")
    small = {
        1_000_000: {"spark": run(1, seconds=9, cpu_s=9), "by hand": run(1, seconds=1, cpu_s=1)}
    }
    assert missed(small, is_idle=True) == []
    good[fifty] = {"spark": run(fifty, seconds=1, cpu_s=5 * 440 * 1.2, memory=1_200)}
    assert missed(good, is_idle=True) == []
    good[fifty] = {"spark": run(fifty, seconds=1, cpu_s=5 * 440 * 1.4, memory=1_400)}
    assert len(missed(good, is_idle=True)) == 2
