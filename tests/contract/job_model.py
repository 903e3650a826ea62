"""What the protocol says, as plainly as it can be said: jobs in a dict, everything by search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from purgatory.jobs import Job, JobLimits, JobOutcome, JobState
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import BlockedBy, HandlerState, JobClaim, JobCounts, OnFire
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.spec import JobSpec, OnConflict
from purgatory.jobs.model.steps import Added, AddStatus, Finish, GiveBack, WaitAgain


class JobModel:
    """Every method returns what the store has to return, an error as its class's name."""

    def __init__(
        self, limits: JobLimits, now_ms: Callable[[], int], *, decides_in_turn: bool = False
    ) -> None:
        self.limits = limits
        self.decides_in_turn = decides_in_turn
        self.now_ms = now_ms
        self.jobs: dict[str, Job] = {}
        # {name: id of the job, what was done, fingerprint}
        self.requests: dict[str, tuple[str, AddStatus, str]] = {}
        # Handlers, and None for all.
        self.paused: set[str | None] = set()

    def change(self, job: Job, *, is_freed: bool = False, **changes: Any) -> Job:
        """Store a job with changes and the next version."""
        if is_freed:
            changes |= {
                "epoch": job.epoch + 1,
                "lease_until_ms": 0,
                "slot_ms": None,
                "blocked_by": None,
            }
        return self.put(replace(job, **{"version": job.version + 1} | changes))

    def put(self, job: Job) -> Job:
        """Store a job; the slot that it leaves goes to another."""
        old = self.jobs.get(job.id)
        self.jobs[job.id] = job
        if old is not None and old.slot_ms is not None and job.slot_ms is None:
            self.hand_over(old.handler, old.concurrency_key)
        elif old is not None and old.blocked_by == "max_running" and job.blocked_by is None:
            self.move_up(old.handler, old.concurrency_key)
        return job

    # Slots

    def taken(self, job: Job, *, has_key: bool) -> int:
        """How many other jobs hold a slot of the handler, or of the key, of `job`."""
        return sum(
            other.slot_ms is not None
            and other.id != job.id
            and other.handler == job.handler
            and (not has_key or other.concurrency_key == job.concurrency_key)
            for other in self.jobs.values()
        )

    def blocked_by(self, job: Job, bounds: Bounds) -> BlockedBy | None:
        per_key, maximum = bounds.max_running_per_key, bounds.max_running
        has_key = job.concurrency_key is not None
        if has_key and per_key is not None and self.taken(job, has_key=True) >= per_key:
            return BlockedBy.MAX_RUNNING_PER_KEY
        if maximum is not None and self.taken(job, has_key=False) >= maximum:
            return BlockedBy.MAX_RUNNING
        return None

    def block(self, job: Job, blocked_by: BlockedBy) -> None:
        self.jobs[job.id] = replace(
            job, epoch=job.epoch + 1, lease_until_ms=0, blocked_by=blocked_by, slot_ms=None
        )
        if job.slot_ms is not None and blocked_by == "max_running_per_key":
            self.hand_over(job.handler, None)

    def hand_over(self, handler: str, concurrency_key: str | None) -> None:
        self.move_up(handler, concurrency_key)
        first = self.first_blocked(handler, "max_running")
        if first is not None:
            self.unblock(first)

    def move_up(self, handler: str, concurrency_key: str | None) -> None:
        first = None
        if concurrency_key is not None:
            first = self.first_blocked(handler, "max_running_per_key", concurrency_key)
        if first is not None:
            self.block(first, BlockedBy.MAX_RUNNING)

    def unblock(self, job: Job) -> None:
        self.jobs[job.id] = replace(
            job, epoch=job.epoch + 1, blocked_by=None, slot_ms=self.now_ms()
        )

    def first_blocked(
        self, handler: str, blocked_by: str, concurrency_key: str | None = None
    ) -> Job | None:
        waiting = [
            job
            for job in self.jobs.values()
            if job.handler == handler
            and job.blocked_by == blocked_by
            and concurrency_key in (None, job.concurrency_key)
        ]
        return min(waiting, key=lambda job: (job.due_ms, job.id), default=None)

    # Pauses

    def is_paused(self, job: Job) -> bool:
        return not self.paused.isdisjoint({None, job.handler})

    def pause(self, job: Job) -> None:
        changes: dict[str, Any] = {"lease_until_ms": 0, "blocked_by": BlockedBy.PAUSED}
        self.change(job, epoch=job.epoch + 1, version=job.version, **changes)

    def resume(self, handler: str | None) -> int:
        """How many jobs wait for no pause any more."""
        self.paused.discard(handler)
        paused = [job for job in self.jobs.values() if job.blocked_by == "paused"]
        free = [job for job in paused if not self.is_paused(job)]
        for job in free:
            self.change(job, epoch=job.epoch + 1, blocked_by=None, version=job.version)
        return len(free)

    def held(self, claim: JobClaim) -> Job | None:
        job = self.jobs.get(claim.id)
        is_held = job is not None and job.epoch == claim.epoch and job.lease_until_ms > 0
        return job if is_held else None

    def undecided(self, key: str) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if job.is_undecided and key in job.keys and key not in job.fired_before
        ]

    def add(self, spec: JobSpec, now_ms: int) -> Added | str:
        if spec.request is None:
            return self._add(spec, now_ms)
        job_id, status, asked = self.requests.get(spec.request.name, ("", AddStatus.KEPT, ""))
        if job_id in self.jobs:
            if asked != spec.request.fingerprint:
                return "IdempotencyConflictError"
            return Added(self.jobs[job_id], status, is_repeat=True)
        added = self._add(spec, now_ms)
        if isinstance(added, Added):
            noted = (added.job.id, added.status, spec.request.fingerprint)
            self.requests[spec.request.name] = noted
        return added

    def _add(self, spec: JobSpec, now_ms: int) -> Added | str:
        if spec.id in self.jobs:
            return Added(self.jobs[spec.id], AddStatus.KEPT)
        assert spec.deadline.delay_ms is not None
        deadline_ms = now_ms + spec.deadline.delay_ms
        rivals = [
            job
            for job in self.jobs.values()
            if spec.dedupe_key and job.is_undecided and job.dedupe_key == spec.dedupe_key
        ]
        assert len(rivals) <= 1
        if rivals and spec.on_conflict is OnConflict.KEEP:
            return Added(rivals[0], AddStatus.KEPT)
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
                "concurrency_key",
                "owner",
                "max_attempts",
                "misfire",
                "needed",
            )
        } | {"deadline_ms": deadline_ms, "due_ms": deadline_ms, "ceiling_ms": ceiling_ms}
        fields["fired_before"] = ()
        if rivals:
            return Added(self.change(rivals[0], is_freed=True, **fields), AddStatus.REPLACED)
        self.jobs[spec.id] = Job(id=spec.id, created_ms=now_ms, **fields)
        return Added(self.jobs[spec.id], AddStatus.ADDED)

    def claim(
        self,
        worker: str,
        *,
        within_ms: int,
        limit: int,
        lease_ms: int,
        now_ms: int,
        handlers: tuple[str, ...],
        bounds: Bounds | None = None,
    ) -> tuple[list[Job], bool]:
        """The jobs, and whether some were blocked instead."""
        is_cut = False
        while bounds is not None:
            first = self.first_blocked(bounds.handler, "max_running")
            if first is None or self.taken(first, has_key=False) >= (bounds.max_running or 1_000):
                break
            self.unblock(first)
        for job in list(self.jobs.values()):
            if (
                job.lease_until_ms > now_ms + lease_ms
                and job.leased_ms > now_ms + 1_000
                and not job.state.is_final
            ):
                self.jobs[job.id] = replace(job, lease_until_ms=now_ms)
        free = [
            job
            for job in self.jobs.values()
            if not job.state.is_final
            and job.lease_until_ms <= now_ms
            and job.blocked_by is None
            and job.due_ms <= now_ms + within_ms
            and job.handler in handlers
        ]
        claimed = []
        for job in sorted(free, key=lambda job: (job.due_ms, job.id))[:limit]:
            slot_ms = job.slot_ms
            if self.is_paused(job):
                is_cut = True
                self.pause(job)
                continue
            is_bounded = bounds is not None and job.handler == bounds.handler
            if is_bounded and slot_ms is None and job.due_ms <= now_ms:
                assert bounds is not None
                blocked_by = self.blocked_by(job, bounds)
                if blocked_by is not None:
                    is_cut = True
                    self.block(job, blocked_by)
                    continue
                slot_ms = now_ms
            lease: dict[str, Any] = {"worker": worker, "lease_until_ms": now_ms + lease_ms}
            changes: dict[str, Any] = {"slot_ms": slot_ms, "version": job.version}
            changes["leased_ms"] = now_ms
            claimed.append(self.change(job, epoch=job.epoch + 1, **lease, **changes))
        return claimed, is_cut

    def renew(self, claim: JobClaim, lease_ms: int, now_ms: int) -> list[JobClaim]:
        job = self.held(claim)
        if job is None:
            return [claim]
        self.change(job, lease_until_ms=now_ms + lease_ms, leased_ms=now_ms, version=job.version)
        return []

    def start(
        self,
        claim: JobClaim,
        lease_ms: int,
        now_ms: int,
        attempt: int | None = None,
        bounds: Bounds | None = None,
    ) -> Job | None:
        job = self.held(claim)
        if job is not None and self.is_paused(job):
            self.pause(job)
            return None
        if job is None or (job.state is JobState.WAITING and job.due_ms > now_ms):
            return job
        slot_ms = job.slot_ms
        if bounds is not None:
            blocked_by = self.blocked_by(job, bounds)
            if blocked_by is not None:
                self.block(job, blocked_by)
                return None
            slot_ms = now_ms if slot_ms is None else slot_ms
        late_ms = max(0, now_ms - min(job.due_ms, job.deadline_ms))
        return self.change(
            job,
            state=JobState.RUNNING,
            outcome=job.outcome or JobOutcome.EXPIRED,
            attempt=job.attempt + 1 if attempt is None else attempt,
            lateness_ms=late_ms if job.lateness_ms is None else job.lateness_ms,
            slot_ms=slot_ms,
            lease_until_ms=now_ms + lease_ms,
            leased_ms=now_ms,
        )

    def finish(self, result: Finish, now_ms: int) -> bool:
        job = self.jobs.get(result.claim.id)
        if job is None or job.epoch != result.claim.epoch:
            return False
        if job.state is JobState.RUNNING and job.lease_until_ms > 0:
            error = result.error or job.error
            ends: dict[str, Any] = {"finished_ms": now_ms, "lease_until_ms": 0, "slot_ms": None}
            job = self.change(job, state=result.state, error=error, **ends)
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
                slot_ms=None,
            )
        return job.outcome is JobOutcome.MISSED

    def give_back(self, given: GiveBack, now_ms: int) -> bool:
        job = self.held(given.claim)
        if job is None:
            return False
        due_ms = job.due_ms if given.delay_ms is None else now_ms + given.delay_ms
        is_same = job.state is JobState.WAITING and job.due_ms == due_ms
        is_next = job.state is JobState.WAITING and given.delay_ms is given.hold_ms is None
        self.change(
            job,
            epoch=job.epoch + 1,
            lease_until_ms=0 if given.hold_ms is None else now_ms + given.hold_ms,
            leased_ms=job.leased_ms if given.hold_ms is None else now_ms,
            worker=job.worker if given.hold_ms is None else None,
            slot_ms=job.slot_ms if is_next else None,
            state=JobState.WAITING,
            due_ms=due_ms,
            error=given.error or job.error,
            version=job.version + (not is_same),
        )
        return True

    def wait_again(self, step: WaitAgain, now_ms: int) -> Job | None:
        job = self.held(step.claim)
        if job is None or job.state is not JobState.RUNNING:
            return None
        rivals = [each for each in self.jobs.values() if each.is_undecided]
        if job.dedupe_key and job.dedupe_key in {each.dedupe_key for each in rivals}:
            ends: dict[str, Any] = {"finished_ms": now_ms, "lease_until_ms": 0, "slot_ms": None}
            return self.change(job, state=JobState.DONE, **ends)
        assert step.deadline.delay_ms is not None
        deadline_ms = now_ms + step.deadline.delay_ms
        fresh = Job(
            id=job.id,
            handler=job.handler,
            payload_json=step.payload_json or job.payload_json,
            deadline_ms=deadline_ms,
            due_ms=deadline_ms,
            created_ms=job.created_ms,
            keys=step.keys,
            needed=step.needed,
            on_fire=step.on_fire,
            dedupe_key=job.dedupe_key,
            concurrency_key=job.concurrency_key,
            owner=job.owner,
            max_attempts=job.max_attempts,
            misfire=job.misfire,
            epoch=job.epoch + 1,
            worker=job.worker,
            leased_ms=job.leased_ms,
            error=job.error,
            round=job.round + 1,
            round_ms=now_ms,
            version=job.version + 1,
        )
        return self.put(fresh)

    def fire(self, job_id: str, key: str, value_json: str, now_ms: int) -> Job:
        """One of the jobs on `key`: which come first is the store's to say."""
        job = self.jobs[job_id]
        assert job.is_undecided and key in job.keys and key not in job.fired_before
        if len(job.fired_before) + 1 < job.needed:
            return self.change(job, fired_before=(*job.fired_before, key))
        ends: dict[str, Any] = {"due_ms": now_ms}
        if job.on_fire is OnFire.CANCEL:
            ends = {"state": JobState.CANCELLED, "finished_ms": now_ms}
        fired = {"outcome": JobOutcome.FIRED, "fired_key": key, "fired_json": value_json}
        return self.change(job, is_freed=True, **fired, **ends)

    def decide(self, job_ids: Iterable[str], decide: Callable[[JobModel, str], object]) -> None:
        """Decide several jobs in one step.

        In a script of Redis, one after the other: the next may get the slot that one leaves, and
        lose it as it is decided. Elsewhere all of them at once.
        """
        if self.decides_in_turn:
            for job_id in job_ids:
                decide(self, job_id)
            return
        decided = []
        for job_id in job_ids:
            apart = copy(self)
            apart.jobs = self.jobs.copy()
            decide(apart, job_id)
            decided.append(apart.jobs[job_id])
        for job in decided:
            self.put(job)

    def fire_job(
        self, job_id: str, fired: list[tuple[str, str]], round_number: int, now_ms: int
    ) -> Job | None:
        job = self.jobs.get(job_id)
        if job is None or job.round != round_number:
            return job
        for key, value_json in fired:
            if job_id in {job.id for job in self.undecided(key)}:
                self.fire(job_id, key, value_json, now_ms)
        return self.jobs.get(job_id)

    def cancel(self, job_id: str, if_version: int | None, now_ms: int) -> Job | str:
        job = self.jobs.get(job_id)
        if job is None:
            return "JobNotFoundError"
        if if_version not in (None, job.version):
            return "JobChangedError"
        if job.state is JobState.CANCELLED:
            return job
        if job.state is not JobState.WAITING and job.blocked_by is None:
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

    def retry(self, job_id: str, if_version: int | None, now_ms: int) -> Job | str:
        job = self.jobs.get(job_id)
        if job is None:
            return "JobNotFoundError"
        if if_version not in (None, job.version):
            return "JobChangedError"
        if job.state is not JobState.FAILED:
            return "JobConflictError"
        fresh: dict[str, Any] = {"attempt": 0, "finished_ms": None, "due_ms": now_ms}
        return self.change(job, is_freed=True, state=JobState.WAITING, **fresh)

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
        self.requests = {
            name: noted for name, noted in self.requests.items() if noted[0] in self.jobs
        }
        return len(gone)

    def next_due_ms(self, now_ms: int, handlers: Collection[str] | None = None) -> int | None:
        free = [
            job.due_ms
            for job in self.jobs.values()
            if not (job.state.is_final or job.blocked_by) and job.lease_until_ms <= now_ms
            if handlers is None or job.handler in handlers
        ]
        return min(free, default=None)

    def handler_counts(self) -> Counter[HandlerState]:
        return Counter(
            HandlerState(job.handler, job.state, job.blocked_by)
            for job in self.jobs.values()
            if not job.state.is_final
        )

    def counts(self) -> JobCounts:
        states = [str(job.state) for job in self.jobs.values()]
        blocked = sum(job.blocked_by is not None for job in self.jobs.values())
        return JobCounts(**{str(state): states.count(state) for state in JobState}, blocked=blocked)
