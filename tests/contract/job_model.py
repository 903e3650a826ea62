"""What the protocol says, as plainly as it can be said: jobs in a dict, everything by search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from purgatory.jobs import Job, JobLimits, JobOutcome, JobState
from purgatory.jobs.model import (
    AddStatus,
    Deadline,
    Finish,
    GiveBack,
    JobClaim,
    JobCounts,
    JobSpec,
    OnConflict,
    OnFire,
)


class JobModel:
    """Every method returns what the store has to return, an error as its class's name."""

    def __init__(self, limits: JobLimits) -> None:
        self.limits = limits
        self.jobs: dict[str, Job] = {}

    def change(self, job: Job, *, is_freed: bool = False, **changes: Any) -> Job:
        """Store a job with changes and the next version."""
        if is_freed:
            changes |= {"epoch": job.epoch + 1, "lease_until_ms": 0}
        self.jobs[job.id] = replace(job, **{"version": job.version + 1} | changes)
        return self.jobs[job.id]

    def held(self, claim: JobClaim) -> Job | None:
        job = self.jobs.get(claim.id)
        is_held = job is not None and job.epoch == claim.epoch and job.lease_until_ms > 0
        return job if is_held else None

    def undecided(self, key: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.is_undecided and key in job.keys]

    def add(self, spec: JobSpec, now_ms: int) -> tuple[Job, AddStatus] | str:
        if spec.id in self.jobs:
            return self.jobs[spec.id], AddStatus.KEPT
        assert spec.deadline.delay_ms is not None
        deadline_ms = now_ms + spec.deadline.delay_ms
        rivals = [
            job
            for job in self.jobs.values()
            if spec.dedupe_key and job.is_undecided and job.dedupe_key == spec.dedupe_key
        ]
        assert len(rivals) <= 1
        if rivals and spec.on_conflict is OnConflict.KEEP:
            return rivals[0], AddStatus.KEPT
        if rivals and spec.on_conflict is OnConflict.ERROR:
            return "DuplicateJobError"
        ceiling_ms = rivals[0].ceiling_ms if rivals else None
        if ceiling_ms is None and spec.ceiling_delay_ms is not None:
            ceiling_ms = now_ms + spec.ceiling_delay_ms
        if ceiling_ms is not None:
            deadline_ms = min(deadline_ms, ceiling_ms)
        fields: dict[str, Any] = {
            name: getattr(spec, name)
            for name in (
                "handler",
                "payload_json",
                "keys",
                "on_fire",
                "dedupe_key",
                "owner",
                "max_attempts",
                "misfire",
            )
        } | {"deadline_ms": deadline_ms, "due_ms": deadline_ms, "ceiling_ms": ceiling_ms}
        if rivals:
            return self.change(rivals[0], is_freed=True, **fields), AddStatus.REPLACED
        self.jobs[spec.id] = Job(id=spec.id, created_ms=now_ms, **fields)
        return self.jobs[spec.id], AddStatus.ADDED

    def claim(
        self, worker: str, *, within_ms: int, limit: int, lease_ms: int, now_ms: int
    ) -> list[Job]:
        free = [
            job
            for job in self.jobs.values()
            if not job.state.is_final
            and job.lease_until_ms <= now_ms
            and job.due_ms <= now_ms + within_ms
        ]
        claimed = sorted(free, key=lambda job: (job.due_ms, job.id))[:limit]
        return [
            self.change(
                job,
                epoch=job.epoch + 1,
                worker=worker,
                lease_until_ms=now_ms + lease_ms,
                version=job.version,
            )
            for job in claimed
        ]

    def renew(self, claim: JobClaim, lease_ms: int, now_ms: int) -> list[JobClaim]:
        job = self.held(claim)
        if job is None:
            return [claim]
        self.change(job, lease_until_ms=now_ms + lease_ms, version=job.version)
        return []

    def start(
        self, claim: JobClaim, lease_ms: int, now_ms: int, attempt: int | None = None
    ) -> Job | None:
        job = self.held(claim)
        if job is None or (job.state is JobState.WAITING and job.due_ms > now_ms):
            return job
        late_ms = max(0, now_ms - min(job.due_ms, job.deadline_ms))
        return self.change(
            job,
            state=JobState.RUNNING,
            outcome=job.outcome or JobOutcome.EXPIRED,
            attempt=job.attempt + 1 if attempt is None else attempt,
            lateness_ms=late_ms if job.lateness_ms is None else job.lateness_ms,
            lease_until_ms=now_ms + lease_ms,
        )

    def finish(self, result: Finish, now_ms: int) -> bool:
        job = self.jobs.get(result.claim.id)
        if job is None or job.epoch != result.claim.epoch:
            return False
        if job.state is JobState.RUNNING and job.lease_until_ms > 0:
            error = result.error or job.error
            job = self.change(
                job, state=result.state, finished_ms=now_ms, lease_until_ms=0, error=error
            )
        return job.state is result.state

    def miss(self, claim: JobClaim, now_ms: int) -> bool:
        job = self.jobs.get(claim.id)
        if job is None or job.epoch != claim.epoch:
            return False
        if job.is_undecided and job.lease_until_ms > 0:
            job = self.change(
                job,
                state=JobState.CANCELLED,
                outcome=JobOutcome.MISSED,
                finished_ms=now_ms,
                lease_until_ms=0,
            )
        return job.outcome is JobOutcome.MISSED

    def give_back(self, given: GiveBack, now_ms: int) -> bool:
        job = self.held(given.claim)
        if job is None:
            return False
        due_ms = job.due_ms if given.delay_ms is None else now_ms + given.delay_ms
        is_same = job.state is JobState.WAITING and job.due_ms == due_ms
        self.change(
            job,
            is_freed=True,
            state=JobState.WAITING,
            due_ms=due_ms,
            error=given.error or job.error,
            version=job.version + (not is_same),
        )
        return True

    def fire(self, job_id: str, key: str, value_json: str, now_ms: int) -> Job:
        """One of the jobs on `key`: which come first is the store's to say."""
        job = self.jobs[job_id]
        assert job.is_undecided and key in job.keys
        ends: dict[str, Any] = {"due_ms": now_ms}
        if job.on_fire is OnFire.CANCEL:
            ends = {"state": JobState.CANCELLED, "finished_ms": now_ms}
        fired = {"outcome": JobOutcome.FIRED, "fired_key": key, "fired_json": value_json}
        return self.change(job, is_freed=True, **fired, **ends)

    def cancel(self, job_id: str, now_ms: int) -> Job | str:
        job = self.jobs.get(job_id)
        if job is None:
            return "JobNotFoundError"
        if job.state is JobState.CANCELLED:
            return job
        if job.state is not JobState.WAITING:
            return "JobConflictError"
        return self.change(
            job,
            is_freed=True,
            state=JobState.CANCELLED,
            outcome=job.outcome or JobOutcome.CANCELLED,
            finished_ms=now_ms,
        )

    def reschedule(
        self, job_id: str, deadline: Deadline, if_version: int | None, now_ms: int
    ) -> Job | str:
        job = self.jobs.get(job_id)
        if job is None:
            return "JobNotFoundError"
        if if_version not in (None, job.version):
            return "JobChangedError"
        if not job.is_undecided:
            return "JobConflictError"
        assert deadline.delay_ms is not None
        deadline_ms = now_ms + deadline.delay_ms
        if job.ceiling_ms is not None:
            deadline_ms = min(deadline_ms, job.ceiling_ms)
        return self.change(job, is_freed=True, deadline_ms=deadline_ms, due_ms=deadline_ms)

    def run_now(self, job_id: str, if_version: int | None, now_ms: int) -> Job | str:
        job = self.jobs.get(job_id)
        if job is None:
            return "JobNotFoundError"
        if if_version not in (None, job.version):
            return "JobChangedError"
        if job.state is not JobState.WAITING:
            return "JobConflictError"
        if job.due_ms <= now_ms:
            return job
        return self.change(job, is_freed=True, due_ms=now_ms)

    def prune(self, before_ms: int, keep: int, limit: int) -> int:
        ages = {job.id: job.finished_ms for job in self.jobs.values()}
        finished = sorted((ms, job_id) for job_id, ms in ages.items() if ms is not None)
        too_many = max(0, len(finished) - keep)
        gone = [
            job_id
            for index, (ms, job_id) in enumerate(finished)
            if ms < before_ms or index < too_many
        ][:limit]
        for job_id in gone:
            del self.jobs[job_id]
        return len(gone)

    def next_due_ms(self, now_ms: int) -> int | None:
        free = [
            job.due_ms
            for job in self.jobs.values()
            if not job.state.is_final and job.lease_until_ms <= now_ms
        ]
        return min(free, default=None)

    def counts(self) -> JobCounts:
        states = [str(job.state) for job in self.jobs.values()]
        return JobCounts(**{str(state): states.count(state) for state in JobState})
