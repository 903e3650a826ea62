"""One transaction: the steps of a batch, on locked jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import text

from purgatory.job_errors import (
    CorruptJobError,
    IdempotencyConflictError,
    JobError,
    StoreBusyError,
    StoreFullError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import Slot, SlotCounts, needs_slot
from purgatory.jobs.model.steps import (
    Add,
    Added,
    AddStatus,
    CancelForKey,
    Claim,
    Claimed,
    Finish,
    Fire,
    GiveBack,
    JobStep,
    KeyFired,
    KeyStep,
    Miss,
    Pause,
    Prune,
    Renew,
    Resume,
    Start,
    Step,
    WaitAgain,
)
from purgatory.jobs.model.transitions import (
    added,
    applied,
    begun,
    changed_by,
    ended_early,
    paused,
    resumed,
    with_slot,
)
from purgatory.jobs.sql.tables import is_storable, job_of
from purgatory.jobs.sql.unit_of_work import JobSlots, UnitOfWork
from purgatory.jobs.stores.protocol import NewFire, StoredFire, TakenFire, TakenFires

# Any number: of two processes that prune at the same time, one waits.
_PRUNE_LOCK = 7_160_117_001
# A job, what a request did with it, and the fingerprint of that.
_Noted = tuple[Job, str, str]
_WITHOUT_PAYLOAD = (Renew, Finish, Miss, GiveBack)


class MustLookFirstError(Exception):
    """A spec would be refused, or is stored already: read what is stored before deciding."""


@dataclass(frozen=True, slots=True)
class TakeFires(Step[TakenFires]):
    """Decide the jobs on the keys of stored fires, and remove these, as in `Outbox.take_fires`."""

    fires: tuple[StoredFire, ...]


@dataclass(frozen=True, slots=True)
class StoreFire(Step[None]):
    """Store a fire, as in `Outbox.store_fire`."""

    fire: NewFire


@dataclass(frozen=True, slots=True)
class Quarantine(JobStep[None]):
    """Quarantine a job if its record is corrupt."""

    id: str


class _Taking:
    """One `TakeFires` step. Nothing here waits for the lock of another transaction."""

    # Invariant: no fire is taken whose key is in _waiting: those of a key are taken in order.

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work
        self._limits = work.limits
        self._room = work.limits.max_batch
        self._waiting: set[str] = set()

    def take(self, fires: Sequence[StoredFire]) -> TakenFires:
        """Take what can be taken now."""
        work, statements = self._work, self._work.statements
        ours = self._lock(fires)
        keys = {"keys": statements.dialect.many({fire.key for fire in ours})}
        with_jobs = set(work.execute(statements.reads.keys_with_jobs, keys).scalars())
        taken: list[TakenFire] = []
        is_cut = False
        for fire in ours:
            if fire.key in self._waiting:
                continue
            if fire.key not in with_jobs:
                taken.append(TakenFire(fire, KeyFired()))
                continue
            is_cut = self._room == 0
            if not is_cut:
                taken.append(self._decide(fire))
                is_cut = taken[-1].jobs.has_more and fire.key not in self._waiting
            if is_cut:
                break
        gone = [each.fire.number for each in taken if not each.jobs.has_more]
        if gone:
            work.execute(statements.writes.delete_fires, {"numbers": gone})
        return TakenFires(tuple(taken), frozenset(self._waiting), is_cut)

    def _lock(self, fires: Sequence[StoredFire]) -> list[StoredFire]:
        """Return those that are stored, and locked by us now."""
        work, statements = self._work, self._work.statements
        asked = {"numbers": [fire.number for fire in fires]}
        ours = set(work.execute(statements.locks.stored_fires, asked).scalars())
        if len(ours) < len(fires):
            stored = set(work.execute(statements.reads.stored_numbers, asked).scalars())
            self._waiting = {fire.key for fire in fires if fire.number in stored - ours}
        return [fire for fire in fires if fire.number in ours]

    def _decide(self, fire: StoredFire) -> TakenFire:
        """Decide the jobs on the key of a fire, but not their rounds that began after it.

        A job that was stored between the fire and its commit counts: whoever deferred it read what
        was committed, and a history without the signal.
        """
        work, statements = self._work, self._work.statements
        asked = {"key": fire.key, "limit": self._room + 1, "fired_ms": fire.created_ms}
        found = work.search(statements.locks.on_key_for_fire, asked, has_payload=False)
        has_more = len(found) > self._room
        if not has_more and not statements.dialect.is_sqlite:
            open_ids = work.execute(statements.reads.ids_for_fire, asked).scalars()
            if not {job.id for job in found}.issuperset(open_ids):
                self._waiting.add(fire.key)
                has_more = True
        step = Fire(fire.key, fire.value_json)
        # PostgreSQL looks again at a job that was changed since, and not at the row of its key.
        jobs = [job for job in found[: self._room] if job.waits_on(fire.key)]
        self._room -= len(jobs)
        decided = [work.put(changed_by(step, job, work.now_ms, self._limits)) for job in jobs]
        return TakenFire(fire, KeyFired.of(decided, has_more=has_more))


class JobTransaction:
    """Runs the steps of a batch, kind by kind, on the jobs of a unit of work."""

    def __init__(self, work: UnitOfWork, *, is_careful: bool) -> None:
        """Prepare; `is_careful` looks whether the id of a new job is stored already: it is rare."""
        self._work = work
        self._limits = work.limits
        self._is_careful = is_careful
        self._slots = JobSlots(work)

    def run(self, kinds: Mapping[type[Step[Any]], Sequence[Any]]) -> dict[type, Iterator[Any]]:
        """Run steps, given by their kinds; return their results, in order, by kind."""
        starts, claims = kinds.get(Start, ()), kinds.get(Claim, ())
        bounded = {step.bounds.handler for step in starts if step.bounds is not None}
        bounded |= {bounds.handler for step in claims for bounds in step.bounds}
        self._lock_in_order(kinds, is_more_to_lock=bool(bounded))
        if bounded:
            self._slots.lock(bounded | self._work.slot_handlers)
        results = {}
        for kind, steps in kinds.items():
            run = _RUNS.get(kind, JobTransaction._apply_all)
            results[kind] = iter(run(self, steps))
        self._slots.hand_over()
        self._work.end()
        return results

    def _lock_in_order(
        self, kinds: Mapping[type[Step[Any]], Sequence[Any]], *, is_more_to_lock: bool
    ) -> None:
        """Take the locks for steps in one order for every process, before the first of them is run.

        If each step took its own, a process that runs others first would wait for us while we wait
        for it, and PostgreSQL looks for such deadlocks once a second only. What remains, such as a
        job that is put on a key meanwhile, it does find, and then the batch is run again. SQLite
        has one writer at a time.
        """
        work = self._work
        if work.statements.dialect.is_sqlite:
            return
        ids: set[str] = set()
        full_ids: set[str] = set()
        keys: set[str] = set()
        dedupe_keys: set[str] = set()
        searches = limit = 0
        for kind, steps in kinds.items():
            if issubclass(kind, Add):
                specs = [step.spec for step in steps]
                found = {spec.dedupe_key for spec in specs if spec.dedupe_key is not None}
                dedupe_keys |= found
                searches += bool(found)
            elif issubclass(kind, KeyStep):
                found = {step.key for step in steps}
                keys |= found
                searches += len(found)
                limit = max(limit, *(work.limits.cut(step.limit) + 1 for step in steps))
            elif issubclass(kind, JobStep) and kind is not Renew:
                found = {step.job_id for step in steps}
                ids |= found
                if not issubclass(kind, _WITHOUT_PAYLOAD):
                    full_ids |= found
                searches += 1
        # One search takes its locks in order by itself, unless others follow.
        if searches > 1 or (searches and is_more_to_lock):
            asked = {"ids": ids, "full_ids": full_ids, "keys": keys, "dedupe_keys": dedupe_keys}
            parameters = {name: list(filter(is_storable, texts)) for name, texts in asked.items()}
            work.search(
                work.statements.locks.in_order, {**parameters, "limit": limit}, has_payload=False
            )
            work.note_payloads(full_ids)

    # Kinds of steps

    def _apply_all(self, steps: Sequence[Any]) -> list[Any]:
        is_light = isinstance(steps[0], _WITHOUT_PAYLOAD)
        self._work.lock((step.job_id for step in steps), is_payload_needed=not is_light)
        return [self._apply(step) for step in steps]

    def _apply(self, step: JobStep[Any]) -> Any:
        before = self._work.get(step.job_id)
        after, result = applied(step, before, self._work.now_ms, self._limits)
        if after is not None and after is not before:
            self._work.put(after, is_announced=type(step) is not Renew)
        return result

    def _wait_again_all(self, steps: Sequence[WaitAgain]) -> list[Job | None]:
        self._work.lock(step.job_id for step in steps)
        # Not locked: if one is decided meanwhile, it had the dedupe key all the same. One that is
        # added meanwhile violates the index, and the batch is run again.
        taken = self._taken_dedupe_keys(steps)
        results = []
        for step in steps:
            before = self._work.get(step.job_id)
            is_replaced = before is not None and before.dedupe_key in taken
            after: Job | None = self._apply(replace(step, is_replaced=is_replaced))
            if after is not None and after.is_undecided and after.dedupe_key is not None:
                taken.add(after.dedupe_key)
            results.append(after)
        return results

    def _taken_dedupe_keys(self, steps: Sequence[WaitAgain]) -> set[str]:
        jobs = [job for step in steps if (job := self._work.get(step.job_id)) is not None]
        dedupe_keys = sorted({job.dedupe_key for job in jobs if job.dedupe_key is not None})
        if not dedupe_keys:
            return set()
        work, statements = self._work, self._work.statements
        work.flush()
        asked = {"dedupe_keys": statements.dialect.many(dedupe_keys)}
        return set(work.execute(statements.reads.dedupe_keys, asked).scalars())

    def _add_all(self, steps: Sequence[Add]) -> list[Added | JobError]:
        requests = self._requests(steps)
        rivals = self._rivals(steps)
        results: list[Added | JobError] = []
        for step in steps:
            try:
                results.append(self._add_once(step, requests, rivals))
            except JobError as exc:
                if not self._is_careful:
                    raise MustLookFirstError from exc
                results.append(exc)
        return results

    def _decide_all(self, steps: Sequence[KeyStep]) -> list[KeyFired]:
        results = []
        for step, jobs, has_more in self._on_keys(steps):
            decided = [
                self._work.put(changed_by(step, job, self._work.now_ms, self._limits))
                for job in jobs
            ]
            results.append(KeyFired.of(decided, has_more=has_more))
        return results

    def _start_all(self, steps: Sequence[Start]) -> list[Job | None]:
        bounded = {step.bounds.handler for step in steps if step.bounds is not None}
        self._work.lock(step.job_id for step in steps)
        counts = self._slots.counts(bounded) if bounded else SlotCounts()
        return [self._start(step, counts) for step in steps]

    def _start(self, step: Start, counts: SlotCounts) -> Job | None:
        before = self._work.get(step.job_id)
        if before is not None and step.claim.holds(before):
            if self._work.is_paused(before):
                self._work.put(paused(before))
                return None
            bounds = step.bounds_on(before, self._work.now_ms)
            if bounds is not None:
                by = counts.blocked_by(before, bounds)
                if by is not None:
                    self._slots.block(before, by, counts)
                    return None
                if before.slot_ms is None:
                    counts.add(Slot.of(before))
        started: Job | None = self._apply(step)
        return started

    def _pause(self, step: Pause) -> None:
        self._work.pause(step.handler or "")

    def _resume(self, step: Resume) -> int:
        work = self._work
        work.resume(step.handler or "")
        if "" in work.paused:
            return 0
        asked = {
            "paused": work.statements.dialect.many(work.paused),
            "limit": self._limits.cut(step.limit),
        }
        jobs = work.search(work.statements.locks.paused_jobs, asked)
        for job in jobs:
            work.put(resumed(job))
        return len(jobs)

    def _renew_all(self, steps: Sequence[Renew]) -> list[bool | JobError]:
        """Renew without waiting for locks: one job that is locked must not cost other leases."""
        locked = self._work.lock_unlocked(step.job_id for step in steps)
        return [
            StoreBusyError(f"job {step.job_id} is locked by another transaction: ask again")
            if step.job_id in locked
            else self._apply(step)
            for step in steps
        ]

    def _quarantine(self, step: Quarantine) -> None:
        # Reading it is all that it takes.
        self._work.lock([step.id])

    # Stored fires

    def _take(self, step: TakeFires) -> TakenFires:
        return _Taking(self._work).take(step.fires)

    def _store(self, step: StoreFire) -> None:
        self._work.store_fire(step.fire)

    # Adding

    def _requests(self, steps: Sequence[Add]) -> dict[str, _Noted]:
        """Return what earlier requests of the same names have done, by name.

        Their jobs are not locked: a repeat changes nothing, and others need not wait for its end.
        """
        names = [step.spec.request.name for step in steps if step.spec.request is not None]
        if not names:
            return {}
        work, statements = self._work, self._work.statements
        asked = {"names": statements.dialect.many(names)}
        found: dict[str, _Noted] = {}
        for row in work.execute(statements.reads.requests, asked).mappings().all():
            try:
                found[row["name"]] = job_of(row), row["status"], row["fingerprint"]
            except CorruptJobError as exc:
                # Quarantined, and forgotten with its requests.
                work.lock([exc.job_id])
        return found

    def _rivals(self, steps: Sequence[Add]) -> dict[str, Job]:
        """Return the undecided jobs that have a dedupe key of the specs, by it."""
        specs = [step.spec for step in steps]
        dedupe_keys = {spec.dedupe_key for spec in specs if spec.dedupe_key is not None}
        # A job that is stored already is not a rival of itself.
        own = {spec.id for spec in specs if self._is_careful or spec.dedupe_key is not None}
        self._work.lock(own)
        if not dedupe_keys:
            return {}
        statements = self._work.statements
        jobs = self._work.search(
            statements.locks.by_dedupe_key,
            {"dedupe_keys": statements.dialect.many(sorted(dedupe_keys))},
        )
        return {job.dedupe_key: job for job in jobs if job.dedupe_key is not None}

    def _add_once(self, step: Add, requests: dict[str, _Noted], rivals: dict[str, Job]) -> Added:
        request = step.spec.request
        if request is None:
            return self._add(step, rivals)
        noted = requests.get(request.name)
        if noted is not None:
            job, status, fingerprint = noted
            if fingerprint != request.fingerprint:
                raise IdempotencyConflictError(job)
            # As this transaction leaves it, if it has changed it.
            return Added(self._work.get(job.id) or job, AddStatus(status), is_repeat=True)
        added = self._add(step, rivals)
        self._work.note_request(request, added)
        requests[request.name] = added.job, added.status, request.fingerprint
        return added

    def _add(self, step: Add, rivals: dict[str, Job]) -> Added:
        spec, now_ms = step.spec, self._work.now_ms
        known = self._work.get(spec.id)
        if known is not None:
            return Added(known, AddStatus.KEPT)
        rival = None if spec.dedupe_key is None else rivals.get(spec.dedupe_key)
        if rival is not None:
            rival = self._work[rival.id]
            job = changed_by(step, rival, now_ms, self._limits)
            if job is rival:
                return Added(job, AddStatus.KEPT)
            return Added(self._work.put(self._after_fires(job)), AddStatus.REPLACED)
        job = self._after_fires(added(spec, now_ms, self._limits))
        if self._work.is_full:
            raise StoreFullError.of_limit(self._limits.max_waiting)
        self._work.add(job)
        if job.dedupe_key is not None:
            rivals[job.dedupe_key] = job
        return Added(job, AddStatus.ADDED)

    def _after_fires(self, job: Job) -> Job:
        fired = self._work.fired_keys
        return job if not fired or fired.isdisjoint(job.keys) else begun(job, self._work.now_ms)

    # Claiming

    def _claim(self, step: Claim) -> Claimed:
        work, locks = self._work, self._work.statements.locks
        limit = self._limits.cut(step.limit)
        counts = SlotCounts()
        bounds_of = {bounds.handler: bounds for bounds in step.bounds}
        if bounds_of:
            counts = self._slots.counts(bounds_of)
            self._slots.fill(step.bounds, counts)
        if step.may_end_leases(work.now_ms):
            self._end_leases(step)
        asked = {
            "until_ms": work.now_ms + step.within_ms,
            "limit": limit,
            "handlers": work.statements.dialect.many(step.handlers),
        }
        jobs = work.search(locks.free, asked)
        jobs += work.search(locks.lapsed, {**asked, "now_ms": work.now_ms})
        jobs.sort(key=lambda job: (job.due_ms, job.id))
        claimed = []
        is_cut = False
        for job in jobs[:limit]:
            if work.is_paused(job):
                is_cut = True
                work.put(paused(job))
                continue
            if job.handler in bounds_of and needs_slot(job, work.now_ms):
                by = counts.blocked_by(job, bounds_of[job.handler])
                if by is not None:
                    is_cut = True
                    self._slots.block(job, by, counts)
                    continue
                counts.add(Slot.of(job))
                job = with_slot(job, work.now_ms)
            after = changed_by(step, job, work.now_ms, self._limits)
            claimed.append(work.put(after, is_announced=False))
        return Claimed(work.now_ms, claimed, is_cut)

    def _end_leases(self, step: Claim) -> None:
        """End leases that began later than now, of a batch of those that end last."""
        work = self._work
        asked = {"after_ms": work.now_ms + step.lease_ms, "limit": self._limits.max_batch}
        rows = work.execute(work.statements.reads.last_leases, asked).all()
        early = [job_id for job_id, leased_ms in rows if leased_ms > work.now_ms]
        if early:
            work.lock_unlocked(early)
            jobs = [job for job_id in early if (job := work.get(job_id)) is not None]
            for job in jobs:
                work.put(ended_early(job, step, work.now_ms), is_announced=False)

    # Keys

    def _on_keys(self, steps: Sequence[KeyStep]) -> Iterator[tuple[KeyStep, list[Job], bool]]:
        """Yield for each step some undecided jobs on its key, and whether there are more.

        One after another: what is done for one step counts for the next.
        """
        found = self._on_several([step.key for step in steps]) if len(steps) > 1 else None
        for step in steps:
            limit = self._limits.cut(step.limit)
            if found is None:
                yield step, *self._on_key(step.key, limit)
            else:
                jobs = [self._work[job_id] for job_id in found.get(step.key, ())]
                waiting = [job for job in jobs if job.waits_on(step.key)]
                yield step, waiting[:limit], len(waiting) > limit

    def _on_several(self, keys: Iterable[str]) -> dict[str, list[str]] | None:
        """Return the ids of all undecided jobs by their keys; None if they are too many."""
        maximum = self._limits.max_batch
        statements = self._work.statements
        asked = {"keys": statements.dialect.many(keys), "limit": maximum + 1}
        found = self._work.search(statements.locks.on_keys, asked, has_payload=False)
        if len(found) > maximum:
            return None
        ids: dict[str, list[str]] = {}
        # A job on two of the keys is found twice.
        for job_id in sorted({job.id for job in found}):
            for key in self._work[job_id].keys:
                ids.setdefault(key, []).append(job_id)
        return ids

    def _on_key(self, key: str, limit: int) -> tuple[list[Job], bool]:
        """Return some of the undecided jobs on `key`, locked, and whether there are more."""
        asked = {"key": key, "limit": limit + 1}
        found = self._work.search(self._work.statements.locks.on_key, asked, has_payload=False)
        # PostgreSQL looks again at the job that it waited for, and not at the row of its key: it
        # may have been replaced meanwhile, and be on other keys, or have counted this one.
        jobs = [job for job in found[:limit] if job.waits_on(key)]
        return jobs, len(found) > limit

    # Retention

    def _prune(self, step: Prune) -> int:
        work, statements = self._work, self._work.statements
        work.flush()
        if not statements.dialect.is_sqlite:
            # Else another would take what is left for the first of more than there are.
            work.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _PRUNE_LOCK})
        finished = work.finished_count()
        limit = {"limit": self._limits.cut(step.limit)}
        rows = work.execute(statements.locks.finished, limit).all()
        gone = [
            row
            for index, row in enumerate(rows)
            if row.finished_ms < step.finished_before_ms or index < finished - step.keep
        ]
        work.delete(gone)
        return len(gone)


_Run = Callable[[JobTransaction, Sequence[Any]], list[Any]]


def _each(run: Callable[[JobTransaction, Any], Any]) -> _Run:
    return lambda transaction, steps: [run(transaction, step) for step in steps]


# Not bound: a transaction that had its own methods would be freed by the garbage collector only.
_RUNS: Final[Mapping[type[Step[Any]], _Run]] = {
    Add: JobTransaction._add_all,
    Fire: JobTransaction._decide_all,
    CancelForKey: JobTransaction._decide_all,
    Claim: _each(JobTransaction._claim),
    WaitAgain: JobTransaction._wait_again_all,
    Start: JobTransaction._start_all,
    Pause: _each(JobTransaction._pause),
    Resume: _each(JobTransaction._resume),
    Prune: _each(JobTransaction._prune),
    Renew: JobTransaction._renew_all,
    Quarantine: _each(JobTransaction._quarantine),
    TakeFires: _each(JobTransaction._take),
    StoreFire: _each(JobTransaction._store),
}
