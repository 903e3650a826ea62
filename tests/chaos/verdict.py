"""Compares what clients and handlers saw with what a store says in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from purgatory.jobs import Job, JobOutcome, JobState
from tests.chaos.ledger import Deferred, Ledger, Request, Run

# Between a client's clock and the store's there may be a millisecond, and a request takes a moment
# to where its effect is.
SLACK_MS = 250


@dataclass(slots=True)
class Verdict:
    """What was found: `faults` is empty where every promise was kept."""

    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    runs: int = 0
    repeats: int = 0
    """Runs beyond the first of their job: allowed, and counted."""
    unknown: int = 0
    """Jobs that are stored though nobody was told: the answer was lost."""
    outcomes: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0

    def __str__(self) -> str:
        """Sum it up in a line."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{self.acknowledged} jobs acknowledged ({outcomes}), {self.cancelled} cancels "
            f"acknowledged, {self.runs} runs, {self.repeats} of them repeats, {self.unknown} jobs "
            f"stored without an answer, {len(self.faults)} faults"
        )


def judge(ledger: Ledger, runs: list[Run], stored: list[Job]) -> Verdict:
    """Hold the promises of docs/reference/jobs.md against what happened."""
    verdict = Verdict(runs=len(runs))
    by_id = {job.id: job for job in stored}
    runs_of: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        runs_of[run.job_id].append(run)
    verdict.repeats = sum(len(each) - 1 for each in runs_of.values())
    acknowledged = [job for job in ledger.jobs if job.is_acknowledged]
    verdict.acknowledged = len(acknowledged)
    verdict.unknown = len(by_id) - len(acknowledged)
    for deferred in acknowledged:
        assert deferred.job_id is not None
        job = by_id.get(deferred.job_id)
        for fault in _faults(deferred, job, runs_of[deferred.job_id], ledger.fires):
            verdict.faults.append(f"job {deferred.number} ({deferred.job_id}): {fault}")
        if job is not None:
            verdict.outcomes[str(job.outcome)] += 1
        verdict.cancelled += deferred.cancelled_ms is not None
    for job_id, each in runs_of.items():
        if job_id not in by_id:
            verdict.faults.append(f"job {job_id}: ran {len(each)} times, and is not stored")
    return verdict


def _faults(
    deferred: Deferred, job: Job | None, runs: list[Run], fires: dict[str, list[Request]]
) -> list[str]:
    if job is None:
        return ["was acknowledged, and is lost"]
    faults = []
    if deferred.is_missing:
        faults.append("was acknowledged, and the service did not know it")
    if not job.state.is_final:
        faults.append(f"is still {job.state}")
    if job.outcome is None:
        faults.append("has no outcome")
    if len({run.outcome for run in runs}) > 1:
        faults.append(f"its runs were told of several outcomes: {runs}")
    faults += _early(deferred, job, runs, fires)
    faults += _cancelled(deferred, job, runs)
    faults += _fired(deferred, job, fires)
    should_run = job.outcome is JobOutcome.EXPIRED or (
        job.outcome is JobOutcome.FIRED and deferred.on_fire == "run"
    )
    if should_run and job.state is JobState.DONE and not runs:
        faults.append(f"is done ({job.outcome}), and never ran")
    if job.outcome is JobOutcome.FIRED and deferred.on_fire == "cancel" and runs:
        faults.append("was cancelled by its key, and ran")
    return faults


def _early(
    deferred: Deferred, job: Job, runs: list[Run], fires: dict[str, list[Request]]
) -> list[str]:
    asked = [fire.asked_ms for key in deferred.keys for fire in fires.get(key, [])]
    allowed_ms = min([deferred.deadline_ms, *asked], default=deferred.deadline_ms)
    if job.outcome is JobOutcome.EXPIRED:
        allowed_ms = deferred.deadline_ms
    # The store's clock and ours may round to neighbouring milliseconds.
    return [f"ran {allowed_ms - run.at_ms} ms early" for run in runs if run.at_ms < allowed_ms - 1]


def _cancelled(deferred: Deferred, job: Job, runs: list[Run]) -> list[str]:
    told_ms = deferred.cancelled_ms
    if told_ms is None:
        if job.outcome is JobOutcome.CANCELLED and not deferred.cancels:
            return ["is cancelled, and nobody asked for that"]
        return []
    faults = [
        f"ran after its cancel was acknowledged: {run}" for run in runs if run.at_ms > told_ms
    ]
    if job.state is not JobState.CANCELLED:
        faults.append(f"its cancel was acknowledged, and it is {job.state}")
    return faults


def _fired(deferred: Deferred, job: Job, fires: dict[str, list[Request]]) -> list[str]:
    asked = [fire for key in deferred.keys for fire in fires.get(key, [])]
    if job.outcome is JobOutcome.FIRED:
        return [] if asked else ["has fired, though none of its keys did"]
    if job.outcome is not JobOutcome.EXPIRED:
        return []
    added_ms = deferred.added.answered_ms
    assert added_ms is not None
    # One that was fired and acknowledged well within its time must not expire.
    return [
        f"expired at {deferred.deadline_ms}, though its key fired from {fire.asked_ms} to "
        f"{fire.answered_ms}"
        for fire in asked
        if fire.answered_ms is not None
        and fire.asked_ms > added_ms
        and fire.answered_ms < deferred.deadline_ms - SLACK_MS
    ]
