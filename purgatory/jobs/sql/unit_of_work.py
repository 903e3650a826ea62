"""The unit of work of a transaction: the jobs it has locked, changed and added."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, text

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import BlockedBy, Job, JobState
from purgatory.jobs.model.limits import JobLimits, Slot, left_queue
from purgatory.jobs.model.spec import Request
from purgatory.jobs.model.steps import Added, AddStatus
from purgatory.jobs.sql.database import DatabaseClock
from purgatory.jobs.sql.statements import Statements
from purgatory.jobs.sql.tables import (
    is_storable,
    job_counts,
    job_of,
    listed_key,
    record_of,
    storable,
)

_log = logging.getLogger("purgatory.jobs")
_STATES = frozenset(JobState)


class UnitOfWork:
    """The jobs of one transaction, locked until its end.

    A job is read once and written once, at the end or before a search whose result depends on it: a
    hundred steps take as many statements as one. Synchronous: it runs in the greenlet of an
    AsyncConnection, or in a thread.

    Invariants:
        _jobs == {id: job as it will be stored, for the jobs that are locked or new}
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
        is_ours: bool = True,
    ) -> None:
        """Read the clock and, if `is_counting`, how many jobs wait or run.

        `is_ours`: also set the timeouts of the transaction. One of the application has its own.
        """
        self._connection = connection
        self.statements = statements
        self._limits = limits
        self._shard = shard
        self._jobs: dict[str, Job] = {}
        self._without_payload: set[str] = set()
        self._new: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._replaced: dict[str, None] = {}
        self._decided: dict[str, None] = {}
        self._counted: dict[str, None] = {}
        self._slot_changed: dict[str, None] = {}
        self._requests: list[dict[str, Any]] = []
        self._counts: Counter[JobState] = Counter()
        self._is_recount_needed = False
        self._is_paused_locked = False
        # None until they are read.
        self._paused: frozenset[str] | None = None
        self.active: int | None = None
        """How many jobs waited or ran at the beginning; None unless counted."""
        self.now_ms = self._begin(clock, is_counting, is_ours)
        self.fired_keys: AbstractSet[str] = frozenset()
        """The keys that this transaction, one of the application, has fired so far."""
        self.freed: list[Slot] = []
        """The slots that jobs have left, and that others have not got yet."""
        self.unqueued: list[Slot] = []
        """What jobs waited for that have left the queues of their handlers otherwise."""
        self.announced: dict[str, Job] = {}
        """The jobs that listeners are notified of once it is committed."""

    def _begin(self, clock: DatabaseClock, is_counting: bool, is_ours: bool) -> int:
        now_ms = clock.local_ms()
        is_server = not self.statements.dialect.is_sqlite
        if now_ms is None or is_counting or is_server:
            row = self.execute(clock.query(self.statements, is_counting, is_ours)).one()
            now_ms = int(row[0]) if now_ms is None else now_ms
            self.active = int(row[1]) if is_counting else None
            if is_server:
                self._paused = frozenset(row.paused or ())
        return now_ms

    # Jobs

    def get(self, job_id: str) -> Job | None:
        """Return a job that is locked or new."""
        return self._jobs.get(job_id)

    def __getitem__(self, job_id: str) -> Job:
        """Return a job that is locked or new; raise KeyError."""
        return self._jobs[job_id]

    @property
    def placed_handlers(self) -> set[str]:
        """The handlers of the locked jobs that hold slots."""
        return {job.handler for job in self._jobs.values() if job.slot_ms is not None}

    @property
    def is_full(self) -> bool:
        """True iff as many jobs wait or run as the limit allows."""
        if self.active is None:
            return False
        added = self._counts[JobState.WAITING] + self._counts[JobState.RUNNING]
        return self.active + added >= self._limits.max_waiting

    def add(self, job: Job) -> None:
        """Store a new job."""
        self._jobs[job.id] = job
        self._new[job.id] = None
        self._counts[job.state] += 1
        self.announced[job.id] = job

    def put(self, job: Job, *, is_announced: bool = True, is_freeing: bool = True) -> Job:
        """Store what a step made of a locked job; return it.

        The slot that it leaves is free for others if `is_freeing`.
        """
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
            if job.fired_before != old.fired_before:
                self._counted[job.id] = None
        if job.slot_ms != old.slot_ms:
            self._slot_changed[job.id] = None
            if is_freeing and job.slot_ms is None:
                self.freed.append(Slot.of(old))
        elif (left := left_queue(old, job)) is not None:
            self.unqueued.append(left)
        if job.state is not old.state:
            self._counts[old.state] -= 1
            self._counts[job.state] += 1
        return job

    def replace(self, job: Job) -> Job:
        """Store a locked job whose keys and payload changed, too; return it."""
        self.put(job)
        if job.id not in self._new:
            self._replaced[job.id] = None
        return job

    def note_request(self, request: Request, added: Added) -> None:
        """Store what a request has done: repeats of it change nothing."""
        self._requests.append(
            {
                "name": request.name,
                "job_id": added.job.id,
                "status": added.status.value,
                "fingerprint": request.fingerprint,
                "noted_ms": self.now_ms,
            }
        )

    def delete(self, rows: Sequence[Any]) -> None:
        """Delete jobs, given rows with their ids and states."""
        self._delete([row.id for row in rows])
        for row in rows:
            self._uncount(row.state)

    # Reading

    def lock_unlocked(self, job_ids: Iterable[str]) -> set[str]:
        """Lock the jobs that no other transaction has locked, and return the ids of the others.

        Without payloads.
        """
        ids = {job_id for job_id in job_ids if job_id not in self._jobs and is_storable(job_id)}
        many, locks = self.statements.dialect.many, self.statements.locks
        if ids:
            self.search(locks.unlocked_by_id, {"ids": many(ids)}, has_payload=False)
        left = [job_id for job_id in ids if job_id not in self._jobs]
        if not left or self.statements.dialect.is_sqlite:
            return set()
        found = self.execute(self.statements.reads.existing, {"ids": many(left)})
        return set(found.scalars())

    def lock(self, job_ids: Iterable[str], *, is_payload_needed: bool = True) -> None:
        """Lock jobs, and read them; without payloads unless those are needed."""
        ids = {
            job_id
            for job_id in job_ids
            if job_id not in self._jobs or (is_payload_needed and job_id in self._without_payload)
        }
        asked = [job_id for job_id in ids if is_storable(job_id)]
        if asked:
            locks = self.statements.locks
            statement = locks.by_id if is_payload_needed else locks.by_id_without_payload
            parameters = {"ids": self.statements.dialect.many(asked)}
            self.search(statement, parameters, has_payload=is_payload_needed)

    def search(
        self, statement: Any, parameters: dict[str, Any], *, has_payload: bool = True
    ) -> list[Job]:
        """Return the jobs that a locking statement finds.

        Corrupt records are quarantined; then it searches again, as they may have taken the place of
        others.
        """
        self.flush()
        while True:
            records = self.execute(statement, parameters).mappings().all()
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
            if has_payload:
                self._without_payload.discard(job.id)
            else:
                self._without_payload.add(job.id)
        return jobs

    def note_payloads(self, job_ids: Iterable[str]) -> None:
        """Note that these were read with their payloads after all."""
        self._without_payload.difference_update(job_ids)

    def is_paused(self, job: Job) -> bool:
        """Return True iff the job's handler is paused, and stays so until the end."""
        paused = self.paused
        return bool(paused) and ("" in paused or job.handler in paused)

    @property
    def paused(self) -> frozenset[str]:
        """The handlers that are paused, "" for all."""
        if self._paused is None:
            self._paused = frozenset(self.execute(self.statements.reads.paused).scalars())
        if self._paused and not self._is_paused_locked:
            self._is_paused_locked = True
            self._paused = frozenset(self.execute(self.statements.locks.paused).scalars())
        return self._paused

    def pause(self, handler: str) -> None:
        """Pause a handler, "" for all."""
        self.execute(self.statements.writes.pause, {"handler": handler})
        self._paused = None

    def resume(self, handler: str) -> None:
        """Resume a handler, "" for all; what was blocked by that stays so."""
        self.execute(self.statements.writes.resume, {"handler": handler})
        self._paused = None

    def finished_count(self) -> int:
        """Return how many jobs are finished."""
        counts = self.execute(self.statements.reads.counts).one()._mapping
        return sum(counts[state] + self._counts[state] for state in JobState if state.is_final)

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Return the result of a statement."""
        return self._connection.execute(statement, parameters)

    # Writing

    def flush(self) -> None:
        """Write what changed."""
        self._write_changed()
        self._write_replaced()
        # Last: a dedupe key is free once the job that had it is decided.
        self._write_new()
        self._write_requests()

    def end(self) -> None:
        """Write what changed, and the counts: the last statements of the transaction."""
        self.flush()
        if self._is_recount_needed:
            self._recount()
        elif any(self._counts.values()):
            # Last, so that the row is locked for as short as can be.
            counts = {str(state): self._counts[state] for state in JobState}
            self.execute(self.statements.writes.add_counts, {"shard": self._shard, **counts})

    def _write_new(self) -> None:
        if not self._new:
            return
        # In one order for every process: one that adds the same dedupe keys in another order would
        # wait for us while we wait for it, and PostgreSQL looks for such deadlocks once a second.
        jobs = sorted((self._jobs[job_id] for job_id in self._new), key=_dedupe_key)
        records = [record_of(job) for job in jobs]
        statements = self.statements
        self.execute(statements.writes.insert_jobs, statements.dialect.rows(records))
        self._insert_keys(jobs)
        self._new.clear()

    def _write_requests(self) -> None:
        if not self._requests:
            return
        # In one order for every process, as above.
        rows = sorted(self._requests, key=itemgetter("name"))
        statements = self.statements
        self.execute(statements.writes.insert_requests, statements.dialect.rows(rows))
        # A new job has had no other request.
        old = {row["job_id"] for row in rows if row["status"] != AddStatus.ADDED}
        if old:
            self.execute(statements.writes.trim_requests, [{"of_job": each} for each in old])
        self._requests.clear()

    def _write_changed(self) -> None:
        writes = self.statements.writes
        jobs = [self._jobs[job_id] for job_id in self._changed if job_id not in self._replaced]
        if jobs:
            self.execute(writes.update_jobs, [writes.change(job) for job in jobs])
        if self._decided:
            ids = self.statements.dialect.many(self._decided)
            self.execute(writes.close_keys, {"ids": ids})
        if self._counted:
            self._write_counted()
        if self._slot_changed:
            self._write_slots()
        self._changed.clear()
        self._decided.clear()

    def _write_counted(self) -> None:
        jobs = [self._jobs[job_id] for job_id in self._counted if job_id not in self._replaced]
        if jobs:
            writes = self.statements.writes
            self.execute(writes.update_jobs, [writes.change_of_count(job) for job in jobs])
            closed = [{"of_job": job.id, "of_key": key} for job in jobs for key in job.fired_before]
            self.execute(writes.close_key, closed)
        self._counted.clear()

    def _write_slots(self) -> None:
        jobs = [self._jobs[job_id] for job_id in self._slot_changed if job_id not in self._replaced]
        if jobs:
            changes = [{"job_id": job.id, "slot_ms": job.slot_ms} for job in jobs]
            self.execute(self.statements.writes.update_jobs, changes)
        self._slot_changed.clear()

    def _write_replaced(self) -> None:
        if not self._replaced:
            return
        writes = self.statements.writes
        jobs = [self._jobs[job_id] for job_id in self._replaced]
        self.execute(writes.update_jobs, [writes.change(job, is_replaced=True) for job in jobs])
        ids = self.statements.dialect.many(self._replaced)
        self.execute(writes.delete_keys, {"ids": ids})
        self._insert_keys(jobs)
        self._replaced.clear()

    def _insert_keys(self, jobs: Sequence[Job]) -> None:
        keys = [
            {"key": key, "job_id": job.id, "is_open": job.waits_on(key)}
            for job in jobs
            for key in job.keys
        ]
        keys += [
            {"key": listed_key(job.concurrency_key), "job_id": job.id, "is_open": False}
            for job in jobs
            if job.concurrency_key is not None
        ]
        if keys:
            statements = self.statements
            self.execute(statements.writes.insert_keys, statements.dialect.rows(keys))

    def _delete(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            ids = {"ids": self.statements.dialect.many(job_ids)}
            self.execute(self.statements.writes.delete_keys, ids)
            self.execute(self.statements.writes.delete_requests, ids)
            self.execute(self.statements.writes.delete_jobs, ids)
            for job_id in job_ids:
                self._jobs.pop(job_id, None)

    def _quarantine(self, record: dict[str, Any], error: CorruptJobError) -> None:
        _log.error("%s", error, extra={"action": "quarantine", "job": error.job_id})
        self._delete([record["id"]])
        if isinstance(record["handler"], str):
            slot = Slot(record["handler"], record["concurrency_key"])
            if record["slot_ms"] is not None:
                self.freed.append(slot)
            elif record["blocked_by"] == BlockedBy.MAX_RUNNING and slot.concurrency_key:
                self.unqueued.append(slot)
        quarantined = {
            "id": error.job_id,
            "reason": error.reason,
            "record": json.dumps(record, default=repr)[: self._limits.max_quarantined_length],
            "quarantined_ms": self.now_ms,
        }
        texts = {name: storable(value) for name, value in quarantined.items()}
        writes = self.statements.writes
        self.execute(writes.insert_quarantined, texts)
        self.execute(writes.trim_quarantined, {"kept": self._limits.max_quarantined})
        self._uncount(record["state"])

    def _uncount(self, state: Any) -> None:
        if isinstance(state, str) and state in _STATES:
            self._counts[JobState(state)] -= 1
        else:
            self._is_recount_needed = True

    def _recount(self) -> None:
        """Count all jobs: it is unknown under which state a corrupt record was counted."""
        if not self.statements.dialect.is_sqlite:
            self.execute(text(f"LOCK TABLE {job_counts.name} IN EXCLUSIVE MODE"))
        writes = self.statements.writes
        counts = dict.fromkeys(map(str, JobState), 0)
        for state, count in self.execute(writes.count_jobs):
            # Another corrupt record is found when it is read; it counts as what it may be.
            counts[state if state in _STATES else "waiting"] += count
        self.execute(writes.delete_counts)
        self.execute(writes.add_counts, {"shard": self._shard, **counts})


def _dedupe_key(job: Job) -> str:
    return job.dedupe_key or ""
