"""One transaction: what it has locked, what it has changed, and what is still to be written."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection, select, text

from purgatory.jobs.model import transitions
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import (
    CorruptJobError,
    DuplicateJobError,
    JobError,
    JobNotFoundError,
    StoreFullError,
)
from purgatory.jobs.model.job import Job, JobClaim, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.request_ids import common_part
from purgatory.jobs.model.spec import JobSpec, OnConflict
from purgatory.jobs.sql.database_clock import DatabaseClock
from purgatory.jobs.sql.records import is_storable, job_of, record_of, storable
from purgatory.jobs.sql.statements import Statements
from purgatory.jobs.sql.tables import job_counts
from purgatory.jobs.stores.base import (
    Added,
    AddStatus,
    Claimed,
    JobResult,
    JobReturn,
    KeyFire,
    KeyFired,
)

_log = logging.getLogger("purgatory.jobs")
_STATES = frozenset(JobState)
_MAX_RECORD_LENGTH = 2_000
# Any number: whoever prunes at the same time waits.
_PRUNE_LOCK = 7_160_117_001
_BIGINT = 2**63
# What an item of each step names: a job, or a key.
_ID_OF: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("cancel", "reschedule", "run_now"), itemgetter(0)),
    **dict.fromkeys(("renew", "start", "miss"), attrgetter("id")),
    **dict.fromkeys(("finish", "give_back"), attrgetter("claim.id")),
    "set_aside": str,
}
# Steps that have no need of payloads.
_LIGHT = frozenset({"renew", "finish", "miss", "give_back"})
_KEY_OF: dict[str, Callable[[Any], str]] = {"fire": attrgetter("key"), "cancel_for_key": str}


class LookFirstError(Exception):
    """A spec would be refused, or is there already: read what is stored before deciding."""


class JobTransaction:
    """The steps of a batch, in order, on jobs that are locked until the end.

    A job is read once, decided on by `purgatory.jobs.model.transitions`, and written once at the
    end, or before a search whose result depends on it: a hundred steps take as many statements as
    one. Each public method is a step by its name; it takes items and returns as many results.
    Synchronous: it runs in the greenlet of an AsyncConnection.

    Invariants:
        _jobs == {id: job as it is to be at the end, for the jobs that are locked or new}
        set(_new) | set(_changed) <= set(_jobs)
    """

    def __init__(
        self,
        connection: Connection,
        statements: Statements,
        clock: DatabaseClock,
        limits: JobLimits,
        *,
        shard: int,
        is_counting: bool,
        is_careful: bool,
    ) -> None:
        """Begin.

        `is_counting` reads how many jobs wait or run, and holds new ones against the limit;
        `is_careful` looks whether the id of a new job is stored already, which is rare.
        """
        self._connection = connection
        self._statements = statements
        self._limits = limits
        self._shard = shard
        self._is_careful = is_careful
        self._jobs: dict[str, Job] = {}
        self._light: set[str] = set()
        self._new: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._replaced: dict[str, None] = {}
        self._decided: dict[str, None] = {}
        self._counts: Counter[JobState] = Counter()
        self._is_recount_needed = False
        self.active: int | None = None
        """How many jobs waited or ran at the beginning; None where nobody counted."""
        self.now_ms = self._begin(clock, is_counting)
        self.announced: dict[str, Job] = {}
        """The jobs that listeners are to hear of, once it is committed."""

    def _begin(self, clock: DatabaseClock, is_counting: bool) -> int:
        local_ms = clock.local_ms()
        if is_counting:
            row = self._execute(select(clock.expression(), self._statements.active)).one()
            now_ms, self.active = int(row[0]), int(row[1])
            return now_ms
        if local_ms is not None:
            return local_ms
        return int(self._execute(select(clock.expression())).scalar_one())

    def run(self, name: str, items: Sequence[Any], options: tuple[Any, ...]) -> list[Any]:
        """Do the step of that name."""
        step: Callable[..., list[Any]] = getattr(self, name)
        return step(items, *options)

    def lock_ahead(self, groups: Mapping[tuple[str, tuple[Any, ...]], Sequence[Any]]) -> None:
        """Take the locks for steps in one order for everyone, before the first of them is done.

        `groups` are their items by name and options. Where each took its own, those who do others
        first would wait for us while we wait for them, and PostgreSQL looks for such deadlocks once
        a second only. What remains, such as a job that comes upon a key meanwhile, it does find,
        and then the batch is done again. SQLite has one writer at a time.
        """
        if self._statements.is_sqlite:
            return
        ids: set[str] = set()
        full_ids: set[str] = set()
        keys: set[str] = set()
        dedupe_keys: set[str] = set()
        searches = limit = 0
        for (name, options), items in groups.items():
            if name == "add":
                self._lock_requests(items)
                found = {spec.dedupe_key for spec in items if spec.dedupe_key is not None}
                dedupe_keys |= found
                searches += bool(found)
            elif name in _KEY_OF:
                found = set(map(_KEY_OF[name], items))
                keys |= found
                searches += len(found)
                limit = max(limit, self._cut(options[0]) + 1)
            elif name in _ID_OF:
                found = set(map(_ID_OF[name], items))
                ids |= found
                if name not in _LIGHT:
                    full_ids |= found
                searches += 1
        # One search takes its locks in order by itself.
        if searches > 1:
            asked = {"ids": ids, "full_ids": full_ids, "keys": keys, "dedupe_keys": dedupe_keys}
            storable = {name: list(filter(is_storable, texts)) for name, texts in asked.items()}
            self._search(self._statements.lock_ahead, {**storable, "limit": limit}, is_light=True)
            self._light -= full_ids

    def _lock_requests(self, specs: Iterable[JobSpec]) -> None:
        """Keep others from adding what was asked for by the same requests, until the end.

        Under another hour's id, that is: which no primary key would tell.
        """
        numbers = {int(common_part(spec.id)[:16], 16) - _BIGINT for spec in specs if spec.other_ids}
        if numbers:
            self._execute(self._statements.lock_requests, {"requests": sorted(numbers)})

    # Steps

    def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs."""
        rivals = self._rivals(specs)
        added: list[Added | JobError] = []
        for spec in specs:
            try:
                added.append(self._add(spec, rivals))
            except JobError as exc:
                if not self._is_careful:
                    raise LookFirstError from exc
                added.append(exc)
        return added

    def fire(self, fires: Sequence[KeyFire], limit: int) -> list[KeyFired]:
        """Decide the jobs on keys."""
        results = []
        on_keys = self._on_keys([fire.key for fire in fires], limit)
        for fire, (jobs, has_more) in zip(fires, on_keys, strict=True):
            fired = [transitions.fired(job, fire, self.now_ms) for job in jobs]
            for job in fired:
                self._put(job)
            results.append(KeyFired.of(fired, has_more=has_more))
        return results

    def cancel_for_key(self, keys: Sequence[str], limit: int) -> list[KeyFired]:
        """Cancel the jobs on keys."""
        results = []
        for jobs, has_more in self._on_keys(keys, limit):
            for job in jobs:
                self._put(transitions.cancelled(job, self.now_ms))
            ids = tuple(job.id for job in jobs)
            results.append(KeyFired(cancelled=ids, has_more=has_more))
        return results

    def cancel(self, asked: Sequence[tuple[str, int | None]]) -> list[Job | JobError]:
        """Cancel jobs."""

        def change(if_version: int | None) -> Callable[[Job], Job]:
            return lambda job: transitions.cancelled(job, self.now_ms, if_version)

        return self._change(
            [job_id for job_id, _ in asked], [change(if_version) for _, if_version in asked]
        )

    def reschedule(self, moves: Sequence[tuple[str, Deadline, int | None]]) -> list[Job | JobError]:
        """Move deadlines."""

        def change(deadline: Deadline, if_version: int | None) -> Callable[[Job], Job]:
            return lambda job: transitions.rescheduled(
                job, deadline, if_version, self.now_ms, self._limits
            )

        return self._change(
            [job_id for job_id, _, _ in moves],
            [change(deadline, if_version) for _, deadline, if_version in moves],
        )

    def run_now(self, asked: Sequence[tuple[str, int | None]]) -> list[Job | JobError]:
        """Let jobs be due now."""

        def change(if_version: int | None) -> Callable[[Job], Job]:
            return lambda job: transitions.run_now(job, if_version, self.now_ms)

        return self._change(
            [job_id for job_id, _ in asked], [change(if_version) for _, if_version in asked]
        )

    def claim(self, asked: Sequence[tuple[str, int, int, int]]) -> list[Claimed]:
        """Lease what is due soon."""
        return [Claimed(self.now_ms, self._claim(*each)) for each in asked]

    def renew(self, claims: Sequence[JobClaim], lease_ms: int) -> list[JobClaim | None]:
        """Prolong leases; None for those that were."""
        self._lock((claim.id for claim in claims), is_light=True)
        lost: list[JobClaim | None] = []
        for claim in claims:
            job = self._jobs.get(claim.id)
            if job is None or not transitions.is_held(job, claim):
                lost.append(claim)
            else:
                self._put(transitions.renewed(job, self.now_ms + lease_ms), is_announced=False)
                lost.append(None)
        return lost

    def start(self, claims: Sequence[JobClaim], lease_ms: int) -> list[Job | None]:
        """Begin runs."""
        self._lock(claim.id for claim in claims)
        jobs: list[Job | None] = []
        for claim in claims:
            job = self._jobs.get(claim.id)
            if job is not None and not transitions.is_held(job, claim):
                job = None
            if job is not None:
                job = self._put(transitions.started(job, self.now_ms, lease_ms))
            jobs.append(job)
        return jobs

    def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """End runs."""
        self._lock((result.claim.id for result in results), is_light=True)
        answers = []
        for result in results:
            job = self._jobs.get(result.claim.id)
            if job is not None:
                job = self._put(transitions.finished(job, result, self.now_ms, self._limits))
            answers.append(job is not None and transitions.is_finished(job, result))
        return answers

    def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Let jobs not run any more."""
        self._lock((claim.id for claim in claims), is_light=True)
        answers = []
        for claim in claims:
            job = self._jobs.get(claim.id)
            if job is not None:
                job = self._put(transitions.missed(job, claim, self.now_ms))
            answers.append(job is not None and transitions.is_missed(job, claim))
        return answers

    def give_back(self, returns: Sequence[JobReturn]) -> list[bool]:
        """Let others have jobs."""
        self._lock((given.claim.id for given in returns), is_light=True)
        answers = []
        for given in returns:
            job = self._jobs.get(given.claim.id)
            is_held = job is not None and transitions.is_held(job, given.claim)
            if job is not None and is_held:
                self._put(transitions.given_back(job, given, self.now_ms, self._limits))
            answers.append(is_held)
        return answers

    def prune(self, asked: Sequence[tuple[int, int, int]]) -> list[int]:
        """Forget finished jobs."""
        return [self._prune(*each) for each in asked]

    def set_aside(self, job_ids: Sequence[str]) -> list[None]:
        """Quarantine those of the jobs whose records are corrupt."""
        self._lock(job_ids)
        return [None] * len(job_ids)

    def flush(self) -> None:
        """Write what changed."""
        self._write_changed()
        self._write_replaced()
        # Last: a dedupe key is free once the job that had it is decided.
        self._write_new()

    def end(self) -> None:
        """Write what changed, and the counts: the last statements of the transaction."""
        self.flush()
        if self._is_recount_needed:
            self._recount()
        elif any(self._counts.values()):
            # Last, so that the row is locked for as short as can be.
            counts = {str(state): self._counts[state] for state in JobState}
            self._execute(self._statements.add_counts, {"shard": self._shard, **counts})

    # What steps are made of

    def _rivals(self, specs: Sequence[JobSpec]) -> dict[str, Job]:
        """Return the undecided jobs that have a dedupe key of the specs, by it."""
        dedupe_keys = {spec.dedupe_key for spec in specs if spec.dedupe_key is not None}
        # One that is stored already is not to be taken for a rival of itself.
        self._lock(
            job_id
            for spec in specs
            if self._is_careful or spec.dedupe_key is not None or spec.other_ids
            for job_id in spec.ids
        )
        if not dedupe_keys:
            return {}
        jobs = self._search(
            self._statements.lock_by_dedupe_key,
            {"dedupe_keys": self._statements.many(sorted(dedupe_keys))},
        )
        return {job.dedupe_key: job for job in jobs if job.dedupe_key is not None}

    def _add(self, spec: JobSpec, rivals: dict[str, Job]) -> Added:
        for job_id in spec.ids:
            job = self._jobs.get(job_id)
            if job is not None:
                return Added(job, AddStatus.KEPT)
        deadline_ms = spec.deadline.resolve(self.now_ms, self._limits)
        rival = None if spec.dedupe_key is None else rivals.get(spec.dedupe_key)
        if rival is not None:
            return self._add_to(self._jobs[rival.id], spec, deadline_ms)
        if self._is_full():
            raise StoreFullError.of_limit(self._limits.max_waiting)
        job = spec.job(self.now_ms, deadline_ms)
        self._jobs[job.id] = job
        self._new[job.id] = None
        self._counts[job.state] += 1
        self.announced[job.id] = job
        if job.dedupe_key is not None:
            rivals[job.dedupe_key] = job
        return Added(job, AddStatus.ADDED)

    def _is_full(self) -> bool:
        if self.active is None:
            return False
        added = self._counts[JobState.WAITING] + self._counts[JobState.RUNNING]
        return self.active + added >= self._limits.max_waiting

    def _add_to(self, job: Job, spec: JobSpec, deadline_ms: int) -> Added:
        if spec.on_conflict is OnConflict.KEEP:
            return Added(job, AddStatus.KEPT)
        if spec.on_conflict is OnConflict.ERROR:
            raise DuplicateJobError(job)
        job = self._put(transitions.replaced(job, spec, self.now_ms, deadline_ms))
        if job.id not in self._new:
            self._replaced[job.id] = None
        return Added(job, AddStatus.REPLACED)

    def _claim(self, worker: str, within_ms: int, limit: int, lease_ms: int) -> list[Job]:
        limit = self._cut(limit)
        asked = {"until_ms": self.now_ms + within_ms, "limit": limit}
        jobs = self._search(self._statements.lock_free, asked)
        jobs += self._search(self._statements.lock_lapsed, {**asked, "now_ms": self.now_ms})
        jobs.sort(key=lambda job: (job.due_ms, job.id))
        until_ms = self.now_ms + lease_ms
        return [
            self._put(transitions.claimed(job, worker, until_ms), is_announced=False)
            for job in jobs[:limit]
        ]

    def _on_keys(self, keys: Sequence[str], limit: int) -> Iterator[tuple[list[Job], bool]]:
        """Go through what `_on_key` returns for each: what was done for one counts for the next."""
        limit = self._cut(limit)
        found = self._on_several(keys) if len(keys) > 1 else None
        for key in keys:
            if found is None:
                yield self._on_key(key, limit)
            else:
                jobs = [self._jobs[job_id] for job_id in found.get(key, ())]
                undecided = [job for job in jobs if job.is_undecided]
                yield undecided[:limit], len(undecided) > limit

    def _on_several(self, keys: Iterable[str]) -> dict[str, list[str]] | None:
        """Return the ids of all undecided jobs by their keys; None where they are too many."""
        most = self._limits.max_batch
        asked = {"keys": self._statements.many(keys), "limit": most + 1}
        found = self._search(self._statements.lock_on_keys, asked, is_light=True)
        if len(found) > most:
            return None
        ids: dict[str, list[str]] = {}
        # A job on two of the keys is found twice.
        for job_id in sorted({job.id for job in found}):
            for key in self._jobs[job_id].keys:
                ids.setdefault(key, []).append(job_id)
        return ids

    def _on_key(self, key: str, limit: int) -> tuple[list[Job], bool]:
        """Return some of the undecided jobs on `key`, locked, and whether there are more."""
        asked = {"key": key, "limit": limit + 1}
        found = self._search(self._statements.lock_on_key, asked, is_light=True)
        # PostgreSQL looks again at the job that it waited for, and not at the row of its key: it
        # may have been replaced meanwhile, and be on other keys.
        jobs = [job for job in found[:limit] if key in job.keys]
        return jobs, len(found) > limit

    def _change(
        self, job_ids: Sequence[str], changes: Sequence[Callable[[Job], Job]]
    ) -> list[Job | JobError]:
        self._lock(job_ids)
        results: list[Job | JobError] = []
        for job_id, change in zip(job_ids, changes, strict=True):
            job = self._jobs.get(job_id)
            try:
                if job is None:
                    raise JobNotFoundError(job_id)
                results.append(self._put(change(job)))
            except JobError as exc:
                results.append(exc)
        return results

    def _prune(self, before_ms: int, keep: int, limit: int) -> int:
        self.flush()
        if not self._statements.is_sqlite:
            # Else another would take what is left for the first of more than there are.
            self._execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _PRUNE_LOCK})
        counts = self._execute(self._statements.counts).one()._mapping
        finished = sum(counts[state] + self._counts[state] for state in JobState if state.is_final)
        rows = self._execute(self._statements.lock_finished, {"limit": self._cut(limit)}).all()
        gone = [
            row
            for index, row in enumerate(rows)
            if row.finished_ms < before_ms or index < finished - keep
        ]
        self._delete([row.id for row in gone])
        for row in gone:
            self._uncount(row.state)
        return len(gone)

    def _cut(self, limit: int) -> int:
        return min(limit, self._limits.max_batch)

    def _put(self, job: Job, *, is_announced: bool = True) -> Job:
        old = self._jobs[job.id]
        if job is old:
            return job
        self._jobs[job.id] = job
        if is_announced:
            self.announced[job.id] = job
        if job.id not in self._new:
            self._changed[job.id] = None
            if old.is_undecided and not job.is_undecided and job.keys:
                self._decided[job.id] = None
        if job.state is not old.state:
            self._counts[old.state] -= 1
            self._counts[job.state] += 1
        return job

    # Reading

    def _lock(self, job_ids: Iterable[str], *, is_light: bool = False) -> None:
        """Have jobs in `_jobs`, locked; without payloads, if those are not needed."""
        ids = {
            job_id
            for job_id in job_ids
            if job_id not in self._jobs or (not is_light and job_id in self._light)
        }
        asked = [job_id for job_id in ids if is_storable(job_id)]
        if asked:
            statements = self._statements
            statement = statements.lock_light if is_light else statements.lock_full
            self._search(statement, {"ids": statements.many(asked)}, is_light=is_light)

    def _search(
        self, statement: Any, parameters: dict[str, Any], *, is_light: bool = False
    ) -> list[Job]:
        """Return the jobs found, locked; again while some were corrupt and made way for others."""
        self.flush()
        while True:
            records = self._execute(statement, parameters).mappings().all()
            jobs = []
            corrupt = 0
            for record in records:
                try:
                    jobs.append(job_of(record))
                except CorruptJobError as exc:
                    self._quarantine(dict(record), exc)
                    corrupt += 1
            if not corrupt:
                break
        for job in jobs:
            self._jobs[job.id] = job
            if is_light:
                self._light.add(job.id)
            else:
                self._light.discard(job.id)
        return jobs

    # Writing

    def _write_new(self) -> None:
        if not self._new:
            return
        # In one order for everyone: who adds the same dedupe keys in another would wait for us
        # while we wait for them, and PostgreSQL looks for such deadlocks once a second only.
        jobs = sorted((self._jobs[job_id] for job_id in self._new), key=_dedupe_key)
        records = [record_of(job) for job in jobs]
        self._execute(self._statements.insert_jobs, self._statements.rows(records))
        self._insert_keys(jobs)
        self._new.clear()

    def _write_changed(self) -> None:
        jobs = [self._jobs[job_id] for job_id in self._changed if job_id not in self._replaced]
        if jobs:
            changes = [self._statements.change(job) for job in jobs]
            self._execute(self._statements.update_jobs, changes)
        if self._decided:
            ids = self._statements.many(self._decided)
            self._execute(self._statements.close_keys, {"ids": ids})
        self._changed.clear()
        self._decided.clear()

    def _write_replaced(self) -> None:
        if not self._replaced:
            return
        jobs = [self._jobs[job_id] for job_id in self._replaced]
        changes = [self._statements.change(job, is_replaced=True) for job in jobs]
        self._execute(self._statements.update_jobs, changes)
        self._execute(self._statements.delete_keys, {"ids": self._statements.many(self._replaced)})
        self._insert_keys(jobs)
        self._replaced.clear()

    def _insert_keys(self, jobs: Iterable[Job]) -> None:
        keys = [
            {"key": key, "job_id": job.id, "is_open": job.is_undecided}
            for job in jobs
            for key in job.keys
        ]
        if keys:
            self._execute(self._statements.insert_keys, self._statements.rows(keys))

    def _delete(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            ids = {"ids": self._statements.many(job_ids)}
            self._execute(self._statements.delete_keys, ids)
            self._execute(self._statements.delete_jobs, ids)
            for job_id in job_ids:
                self._jobs.pop(job_id, None)

    def _quarantine(self, record: dict[str, Any], error: CorruptJobError) -> None:
        _log.error("%s", error, extra={"action": "quarantine", "job": error.job_id})
        self._delete([record["id"]])
        quarantined = {
            "id": error.job_id,
            "reason": error.reason,
            "record": json.dumps(record, default=repr)[:_MAX_RECORD_LENGTH],
            "quarantined_ms": self.now_ms,
        }
        # Whatever was stored, this can be.
        texts = {name: storable(value) for name, value in quarantined.items()}
        self._execute(self._statements.insert_quarantined, texts)
        self._execute(self._statements.trim_quarantined, {"kept": self._limits.max_quarantined})
        self._uncount(record["state"])

    def _uncount(self, state: Any) -> None:
        if isinstance(state, str) and state in _STATES:
            self._counts[JobState(state)] -= 1
        else:
            self._is_recount_needed = True

    def _recount(self) -> None:
        """Count all: nobody knows under which state a corrupt record was counted."""
        if not self._statements.is_sqlite:
            self._execute(text(f"LOCK TABLE {job_counts.name} IN EXCLUSIVE MODE"))
        counts = dict.fromkeys(map(str, JobState), 0)
        for state, count in self._execute(self._statements.count_jobs):
            # Another corrupt record is found when it is read; it counts as what it may be.
            counts[state if state in _STATES else "waiting"] += count
        self._execute(self._statements.delete_counts)
        self._execute(self._statements.add_counts, {"shard": self._shard, **counts})

    def _execute(self, statement: Any, parameters: Any = None) -> Any:
        return self._connection.execute(statement, parameters)


def _dedupe_key(job: Job) -> str:
    return job.dedupe_key or ""
