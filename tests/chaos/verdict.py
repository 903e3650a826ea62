"""Compares what clients and handlers saw with what a store says in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from purgatory.jobs import Job, JobOutcome, JobState
from purgatory.jobs.handlers.handler import run_time
from tests.chaos.ledger import (
    AGAIN_MS,
    LEASE_MS,
    MAX_RUNNING,
    MAX_RUNNING_PER_KEY,
    TICK_MS,
    Deferred,
    Ledger,
    Request,
    Run,
    Tick,
)

# Between a client's clock and the store's there may be a millisecond, and a request takes a moment
# to where its effect is.
SLACK_MS = 250
# By then, another process has looked whether the next periodic run is stored: those that were
# killed or stopped meanwhile are up, and so is the store.
MAX_UNSTORED_MS = 15_000


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
    retried: int = 0

    def __str__(self) -> str:
        """Sum it up in a line."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{self.acknowledged} jobs acknowledged ({outcomes}), {self.cancelled} cancels "
            f"acknowledged, {self.runs} runs, {self.repeats} of them repeats, {self.unknown} jobs "
            f"stored without an answer, {len(self.faults)} faults"
        )


def judge(
    ledger: Ledger,
    runs: list[Run],
    stored: list[Job],
    spans: Sequence[tuple[str, int, int]] = (),
) -> Verdict:
    """Hold the promises of docs/reference/jobs.md against what happened.

    `spans` are the jobs, beginnings and ends of runs that ended.
    """
    verdict = Verdict(runs=len(runs), retried=ledger.retried)
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
    verdict.faults += _paused(ledger, runs)
    for job_id, each in runs_of.items():
        if job_id not in by_id:
            verdict.faults.append(f"job {job_id}: ran {len(each)} times, and is not stored")
    verdict.faults += _too_many_at_once(ledger, spans, by_id)
    return verdict


def judge_ticks(stored: list[Job], ticks: Sequence[Tick]) -> Iterator[str]:
    """Yield where a time of the periodic job had two runs, or none against the rule.

    The next run is for the first time after it was stored, which is when the one before began, or
    once a process can.
    """
    began_ms: dict[str, int] = {}
    for tick in ticks:
        began_ms.setdefault(tick.job_id, tick.at_ms)
    of_time: dict[int, Job] = {}
    for job in stored:
        run = run_time(job)
        if run is None or run.at_ms % TICK_MS:
            yield f"{job} is for no time of the series"
            continue
        if run.at_ms in of_time:
            yield f"{job.id} and {of_time[run.at_ms].id} are both for {run.at_ms}"
        of_time[run.at_ms] = job
        if job.state is JobState.DONE and job.id not in began_ms:
            yield f"{job.id}, for {run.at_ms}, is done and did not run"
    if not ticks:
        yield "nothing ran periodically"
    for tick in ticks:
        if of_time.get(tick.time_ms) is None or of_time[tick.time_ms].id != tick.job_id:
            yield f"{tick} is of no stored run"
    for before, at_ms in pairwise(sorted(of_time)):
        job = of_time[at_ms]
        if at_ms > job.created_ms + TICK_MS + SLACK_MS:
            yield f"{job.id} was stored at {job.created_ms}, and is for {at_ms}"
        late_ms = job.created_ms - began_ms.get(of_time[before].id, job.created_ms)
        if late_ms > MAX_UNSTORED_MS:
            yield f"{job.id} was stored {late_ms} ms after the run before it began"


def _too_many_at_once(
    ledger: Ledger, spans: Sequence[tuple[str, int, int]], by_id: dict[str, Job]
) -> Iterator[str]:
    """Yield where more jobs ran at once than their handler allows, each by its lease."""
    changes = []
    for job_id, began_ms, ended_ms in spans:
        # When its handler began, more than half of its lease was left.
        until_ms = min(ended_ms, began_ms + LEASE_MS // 2)
        job = by_id.get(job_id)
        if job is not None and job.handler == "charge" and began_ms < until_ms:
            changes += [(until_ms, False, job_id), (began_ms, True, job_id)]
    running: Counter[str] = Counter()
    # What ended in the same millisecond as another began was before it, for all we know.
    for at_ms, is_begin, job_id in sorted(changes):
        running[job_id] += 1 if is_begin else -1
        at_once = [by_id[each] for each, count in running.items() if count]
        keys = Counter(job.concurrency_key for job in at_once if job.concurrency_key is not None)
        if any(begin <= at_ms <= end + LEASE_MS for begin, end in ledger.disturbances):
            # One that stood still may have lost its lease before its handler began.
            continue
        if len(at_once) > MAX_RUNNING or max(keys.values(), default=0) > MAX_RUNNING_PER_KEY:
            yield f"{len(at_once)} jobs ran at once at {at_ms}, with keys {keys}"


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
    if job.state is JobState.FAILED:
        faults.append(f"is failed ({job.error}), though it was retried")
    if job.outcome is None:
        faults.append("has no outcome")
    if job.slot_ms is not None or job.blocked_by is not None:
        faults.append(f"holds a slot since {job.slot_ms}, or waits for {job.blocked_by}")
    if len({(run.round, run.outcome) for run in runs}) > len({run.round for run in runs}):
        faults.append(f"its runs were told of several outcomes: {runs}")
    faults += _early(deferred, job, [run for run in runs if run.round == 0], fires)
    faults += _rounds(deferred, job, runs)
    faults += _cancelled(deferred, job, runs)
    if job.round == 0:
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
    if job.outcome is JobOutcome.EXPIRED and job.round == 0:
        allowed_ms = deferred.deadline_ms
    # The store's clock and ours may round to neighbouring milliseconds.
    return [f"ran {allowed_ms - run.at_ms} ms early" for run in runs if run.at_ms < allowed_ms - 1]


def _rounds(deferred: Deferred, job: Job, runs: list[Run]) -> list[str]:
    ran = {run.round for run in runs}
    faults = []
    if job.state is JobState.DONE and (job.round != deferred.rounds or len(ran) != job.round + 1):
        faults.append(f"waits again {deferred.rounds} times, is done in {job.round}, ran in {ran}")
    for run in runs:
        before = [each.at_ms for each in runs if each.round == run.round - 1]
        if run.round and (not before or run.at_ms < min(before) + AGAIN_MS - 1):
            faults.append(f"round {run.round} ran early: {runs}")
    return faults


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


def _paused(ledger: Ledger, runs: list[Run]) -> list[str]:
    """Return the runs that began while their handler was paused."""
    faults = []
    for begun_ms, ended_ms in ledger.pauses:
        # A start that was under way may be committed a moment later, and the worker may take half
        # of its lease to call the handler; one that stood still, until it goes on.
        still_ms = [
            end for begin, end in ledger.disturbances if begin < ended_ms and end > begun_ms
        ]
        since_ms = max([begun_ms, *still_ms]) + LEASE_MS // 2 + SLACK_MS
        faults += [
            f"job {run.number} ({run.job_id}): ran at {run.at_ms}, paused from {begun_ms}"
            for run in runs
            if since_ms < run.at_ms < ended_ms
        ]
    return faults


def _fired(deferred: Deferred, job: Job, fires: dict[str, list[Request]]) -> list[str]:
    asked = {key for key in deferred.keys if fires.get(key)}
    if not set(job.fired_keys) <= asked:
        return [f"was fired by {job.fired_keys}, and only {asked} of its keys were"]
    if job.outcome is JobOutcome.FIRED:
        is_enough = len(set(job.fired_keys)) == len(job.fired_keys) == deferred.needed
        return [] if is_enough else [f"needs {deferred.needed} keys, fired by {job.fired_keys}"]
    if job.outcome is not JobOutcome.EXPIRED:
        return []
    begun_ms = deferred.since_ms or deferred.added.answered_ms
    added_ms = deferred.added.answered_ms
    assert begun_ms is not None and added_ms is not None
    if added_ms > deferred.deadline_ms - SLACK_MS:
        # What fired since its cursor is looked at once it is stored.
        return []
    # One that was fired and acknowledged well within its time must not expire.
    in_time = {
        key
        for key in deferred.keys
        for fire in fires.get(key, [])
        if fire.answered_ms is not None
        and fire.asked_ms > begun_ms
        and fire.answered_ms < deferred.deadline_ms - SLACK_MS
    }
    if len(in_time) < deferred.needed:
        return []
    return [f"expired at {deferred.deadline_ms}, though {in_time} of its keys fired in time"]
