"""A run: all stages one after the other, and the comparison of their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from purgatory.timer import compiled
from tests.benchmarks.comparison.process import this_machine, wall_ns
from tests.benchmarks.comparison.row import Comparison, Samples, compare
from tests.benchmarks.core.race import Race
from tests.benchmarks.core.report import Report
from tests.benchmarks.core.rows import ROWS
from tests.benchmarks.core.stage import Plan, Step
from tests.benchmarks.core.stages import STAGES

Progress = Callable[[str], object]


def run(plan: Plan, progress: Progress, *, only: frozenset[str] = frozenset()) -> Report:
    """Run the stages of `plan`, or those named in `only`, and return the comparisons."""
    machine, started_ns = this_machine(plan.collector), wall_ns()
    samples = _run_stages(plan, progress, only or frozenset(STAGES))
    return Report(
        machine=machine,
        plan=plan,
        seconds=(wall_ns() - started_ns) // 1_000_000_000,
        comparisons=_compare(plan, samples),
        samples=samples,
    )


def _run_stages(plan: Plan, progress: Progress, names: frozenset[str]) -> dict[str, Samples]:
    samples: dict[str, Samples] = {}
    idle: list[tuple[Race, Step]] = []
    with ExitStack() as stack:
        for name in (name for name in STAGES if name in names):
            steps = STAGES[name].steps(plan)
            race = stack.enter_context(
                Race(name, plan.collector, _announcer(name, steps, progress))
            )
            samples[name] = race.samples
            if STAGES[name].is_idle:
                # It waits while the others run, and takes no CPU time from them.
                race.run(steps[:-1])
                race.begin(steps[-1])
                idle.append((race, steps[-1]))
            else:
                race.run(steps)
                race.close()
        for race, step in idle:
            race.finish(step)
    return samples


def _announcer(stage: str, steps: Sequence[Step], progress: Progress) -> Callable[[Step], None]:
    started_ns = wall_ns()
    totals, done = Counter(step.do for step in steps), Counter[str]()

    def announce(step: Step) -> None:
        done[step.do] += 1
        action = step.do.replace("_", " ")
        seconds = (wall_ns() - started_ns) / 1e9
        progress(f"{stage}: {action}, {done[step.do]} of {totals[step.do]} ({seconds:.1f} s)")

    return announce


def _compare(plan: Plan, samples: dict[str, Samples]) -> list[Comparison]:
    found = (
        compare(row, samples[row.stage], plan.sizes(), is_compiled=compiled)
        for row in ROWS
        if row.stage in samples
    )
    return [comparison for comparison in found if comparison is not None]
