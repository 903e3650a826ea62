"""The unit of work of a transaction: the jobs it has locked, changed and added, and their slots.

Here: what several transactions must not change at once, and what is written. Not here: what a step
does with what is locked (`sql.job_transaction`), and the statements (`sql.statements`).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, insert

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import BlockedBy, Job, JobState
from purgatory.jobs.model.limits import Bounds, Slot, SlotCounts, left_queue
from purgatory.jobs.model.spec import Request
from purgatory.jobs.model.steps import Added, AddStatus
from purgatory.jobs.model.transitions import blocked, unblocked
from purgatory.jobs.sql.database import Database, DatabaseClock
from purgatory.jobs.sql.tables import is_storable, job_of, listed_key, outbox, record_of, storable
from purgatory.jobs.stores.protocol import NewFire

_log = logging.getLogger("purgatory.jobs")


class UnitOfWork:
    """The jobs of one transaction, locked until its end.

    A job is read once and written once, at the end or before a search whose result depends on it: a
    hundred steps take as many statements as one. Synchronous: it runs in the greenlet of an
    AsyncConnection, or in a thread.

    Invariants:
        _jobs == {id: job as it will be stored, for the jobs that are locked or new}
        _stored == {id: job as it is stored, for those of _jobs that differ; None if it is new}
    """

    def __init__(
        self,
        connection: Connection,
        database: Database,
        *,
        shard: int,
        is_counting: bool,
        is_ours: bool = True,
    ) -> None:
        """Read the clock and, if `is_counting`, how many jobs wait or run.

        `is_ours`: also set the timeouts of the transaction. One of the application has its own.
        """
        self.connection = connection
        self.statements = database.statements
        self.limits = database.limits
        self._shard = shard
        self._jobs: dict[str, Job] = {}
        self._without_payload: set[str] = set()
        self._stored: dict[str, Job | None] = {}
        self._requests: list[dict[str, Any]] = []
        self._counts: Counter[JobState] = Counter()
        self._is_paused_locked = False
        # None until they are read.
        self._paused: frozenset[str] | None = None
        self.active: int | None = None
        """How many jobs waited or ran at the beginning; None unless counted."""
        self.now_ms = self._begin(database.clock, is_counting, is_ours)
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
    def slot_handlers(self) -> set[str]:
        """The handlers of the locked jobs that hold slots."""
        return {job.handler for job in self._jobs.values() if job.slot_ms is not None}

    @property
    def is_full(self) -> bool:
        """True iff as many jobs wait or run as the limit allows."""
        if self.active is None:
            return False
        added = self._counts[JobState.WAITING] + self._counts[JobState.RUNNING]
        return self.active + added >= self.limits.max_waiting

    def add(self, job: Job) -> None:
        """Store a new job."""
        self._jobs[job.id] = job
        self._stored[job.id] = None
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
        self._stored.setdefault(job.id, old)
        if job.slot_ms != old.slot_ms:
            if is_freeing and job.slot_ms is None:
                self.freed.append(Slot.of(old))
        elif (left := left_queue(old, job)) is not None:
            self.unqueued.append(left)
        if job.state is not old.state:
            self._counts[old.state] -= 1
            self._counts[job.state] += 1
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

    def store_fire(self, fire: NewFire) -> None:
        """Store a fire, of now."""
        self.execute(insert(outbox), {**asdict(fire), "created_ms": self.now_ms})

    def delete(self, rows: Sequence[Any]) -> None:
        """Delete jobs, given rows with their ids and states."""
        self._delete([row.id for row in rows])
        for row in rows:
            self._counts[JobState(row.state)] -= 1

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
        return self.connection.execute(statement, parameters)

    # Writing

    def flush(self) -> None:
        """Write what changed."""
        stored, self._stored = self._stored, {}
        new = [self._jobs[job_id] for job_id, old in stored.items() if old is None]
        changes = [(old, self._jobs[old.id]) for old in stored.values() if old is not None]
        if changes:
            self._write_changes(changes)
        if new:
            # After that: a dedupe key is free once the job that had it is decided.
            self._write_new(new)
        if self._requests:
            self._write_requests()

    def end(self) -> None:
        """Write what changed, and the counts: the last statements of the transaction."""
        self.flush()
        if any(self._counts.values()):
            # Last, so that the row is locked for as short as can be.
            counts = {str(state): self._counts[state] for state in JobState}
            self.execute(self.statements.writes.add_counts, {"shard": self._shard, **counts})

    def _write_changes(self, changes: Sequence[tuple[Job, Job]]) -> None:
        statements = self.statements
        # {names of what changes: the parameters}
        rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        decided, rekeyed = [], []
        for old, job in changes:
            change = statements.writes.change(old, job)
            rows.setdefault(tuple(change), []).append(change)
            if job.concurrency_key != old.concurrency_key or job.keys != old.keys:
                rekeyed.append(job)
            elif not job.keys:
                continue
            elif not job.is_undecided:
                if old.is_undecided:
                    decided.append(job.id)
            elif job.open_keys != old.open_keys:
                rekeyed.append(job)
        for several in rows.values():
            self.execute(statements.writes.update_jobs, several)
        if decided:
            ids = statements.dialect.many(decided)
            self.execute(statements.writes.close_keys, {"ids": ids})
        if rekeyed:
            ids = statements.dialect.many([job.id for job in rekeyed])
            self.execute(statements.writes.delete_keys, {"ids": ids})
            self._insert_keys(rekeyed)

    def _write_new(self, new: list[Job]) -> None:
        # In one order for every process: one that adds the same dedupe keys in another order would
        # wait for us while we wait for it, and PostgreSQL looks for such deadlocks once a second.
        new.sort(key=lambda job: job.dedupe_key or "")
        statements = self.statements
        rows = statements.dialect.rows([record_of(job) for job in new])
        self.execute(statements.writes.insert_jobs, rows)
        self._insert_keys(new)

    def _write_requests(self) -> None:
        # In one order for every process, as above.
        rows = sorted(self._requests, key=itemgetter("name"))
        statements = self.statements
        self.execute(statements.writes.insert_requests, statements.dialect.rows(rows))
        # A new job has had no other request.
        old = {row["job_id"] for row in rows if row["status"] != AddStatus.ADDED}
        if old:
            self.execute(statements.writes.trim_requests, [{"of_job": each} for each in old])
        self._requests.clear()

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
            "record": json.dumps(record, default=repr)[: self.limits.max_quarantined_length],
            "quarantined_ms": self.now_ms,
        }
        texts = {name: storable(value) for name, value in quarantined.items()}
        writes = self.statements.writes
        self.execute(writes.insert_quarantined, texts)
        self.execute(writes.trim_quarantined, {"kept": self.limits.max_quarantined})
        self._counts[JobState(record["state"])] -= 1


class JobSlots:
    """Counts slots, and hands over those that become free.

    PostgreSQL: with a lock for each handler, taken after those of jobs, so that of two transactions
    the later one sees what the other has counted, freed or blocked.
    """

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work
        self._locked: set[str] = set()

    def lock(self, handlers: Iterable[str]) -> None:
        """Keep other transactions from the slots of these handlers, until the end."""
        new = set(handlers) - self._locked
        if new and not self._work.statements.dialect.is_sqlite:
            numbers = {"numbers": sorted(map(_number, new))}
            self._work.execute(self._work.statements.locks.numbers, numbers)
        self._locked |= new

    def counts(self, handlers: Iterable[str]) -> SlotCounts:
        """Return how many slots of these handlers are taken now."""
        names = sorted(set(handlers))
        self.lock(names)
        # Else what was freed so far could be taken twice.
        self.hand_over()
        work, statements = self._work, self._work.statements
        work.flush()
        counts = SlotCounts()
        asked = {"handlers": statements.dialect.many(names)}
        for handler, concurrency_key, count in work.execute(statements.reads.slots, asked):
            counts.add(Slot(handler, concurrency_key), count)
        return counts

    def fill(self, several: Iterable[Bounds], counts: SlotCounts) -> None:
        """Give the slots that these bounds allow to jobs that wait for them."""
        for bounds in several:
            room = counts.room(bounds, self._work.limits.max_batch)
            for job in self._first(Slot(bounds.handler, None), room) if room else ():
                counts.add(Slot.of(self._work.put(unblocked(job, self._work.now_ms))))

    def block(self, job: Job, by: BlockedBy, counts: SlotCounts) -> None:
        """Let a locked job wait for a slot, and no longer count the one that it holds, if any."""
        self._work.put(blocked(job, by), is_freeing=False)
        if job.slot_ms is None:
            return
        counts.add(Slot.of(job), -1)
        if by is BlockedBy.MAX_RUNNING_PER_KEY:
            # Too many for its key, by these bounds, but not for its handler: another gets it.
            counts.add(Slot(job.handler, None))
            self._work.freed.append(Slot(job.handler, None))

    def hand_over(self) -> None:
        """Give the slots that became free to the jobs that wait for them: before the end."""
        work = self._work
        while work.freed or work.unqueued:
            freed, work.freed = work.freed, []
            unqueued, work.unqueued = work.unqueued, []
            # Not for what left a queue: who waits because of a key that runs is not behind that
            # only, and whoever holds the lock may wait for the job that we change.
            self.lock(slot.handler for slot in freed)
            for slot, count in Counter((*freed, *unqueued)).items():
                if slot.concurrency_key is not None:
                    for job in self._first(slot, count):
                        work.put(blocked(job, BlockedBy.MAX_RUNNING))
            for handler, count in Counter(slot.handler for slot in freed).items():
                for job in self._first(Slot(handler, None), count):
                    work.put(unblocked(job, work.now_ms))

    def _first(self, slot: Slot, limit: int) -> list[Job]:
        """Return the first jobs that wait for a slot, locked."""
        locks = self._work.statements.locks
        asked: dict[str, Any] = {"handler": slot.handler, "limit": limit}
        statements = (locks.blocked, locks.any_blocked)
        if slot.concurrency_key is not None:
            asked["concurrency_key"] = slot.concurrency_key
            statements = (locks.blocked_by_key, locks.any_blocked_by_key)
        jobs = self._work.search(statements[0], asked, has_payload=False)
        if not jobs and not self._work.statements.dialect.is_sqlite:
            # All that wait are locked by others, who may leave them as they are: nobody else would
            # look for them. Nobody waits long for a lock (`lock_timeout`).
            jobs = self._work.search(statements[1], asked, has_payload=False)
        return jobs


def _number(handler: str) -> int:
    digest = blake2b(f"slots of {handler}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
