"""Locks of transactions on jobs: their order, and the slots of jobs whose handlers are bounded.

Here: what several transactions must not change at once. Not here: what a step does with what is
locked (`sql.job_transaction`), and the locking statements (`sql.statements`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from purgatory.jobs.model.job import BlockedBy, Job
from purgatory.jobs.model.limits import Bounds, JobLimits, Slot, SlotCounts
from purgatory.jobs.model.steps import Add, Claim, JobStep, KeyStep, Renew, Start, Step
from purgatory.jobs.model.transitions import blocked, unblocked
from purgatory.jobs.sql.tables import is_storable
from purgatory.jobs.sql.unit_of_work import UnitOfWork


def lock_in_order(
    work: UnitOfWork,
    kinds: Mapping[type[Step[Any]], Sequence[Any]],
    limits: JobLimits,
    *,
    without_payload: tuple[type[Step[Any]], ...],
    is_more_to_lock: bool,
) -> None:
    """Take the locks for steps in one order for every process, before the first of them is run.

    If each step took its own, a process that runs others first would wait for us while we wait for
    it, and PostgreSQL looks for such deadlocks once a second only. What remains, such as a job that
    is put on a key meanwhile, it does find, and then the batch is run again. SQLite has one writer
    at a time.
    """
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
            limit = max(limit, *(limits.cut(step.limit) + 1 for step in steps))
        elif issubclass(kind, JobStep) and kind is not Renew:
            found = {step.job_id for step in steps}
            ids |= found
            if not issubclass(kind, without_payload):
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


class JobPlaces:
    """Counts slots, and hands over those that become free.

    PostgreSQL: with a lock for each handler, taken after those of jobs, so that of two transactions
    the later one sees what the other has counted, freed or blocked.
    """

    def __init__(self, work: UnitOfWork, max_batch: int) -> None:
        self._work = work
        self._max_batch = max_batch
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
            room = counts.room(bounds, self._max_batch)
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
            self._hand_over(freed, unqueued)

    def _hand_over(self, freed: list[Slot], unqueued: list[Slot]) -> None:
        work = self._work
        # Not for what left a queue: who waits because of a key that runs is not behind that only,
        # and whoever holds the lock may wait for the job that we change.
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


def bounded_handlers(kinds: Mapping[type[Step[Any]], Sequence[Any]]) -> set[str]:
    """Return the handlers whose bounds are given with steps."""
    handlers = {step.bounds.handler for step in kinds.get(Start, ()) if step.bounds is not None}
    for step in kinds.get(Claim, ()):
        handlers.update(bounds.handler for bounds in step.bounds)
    return handlers


def _number(handler: str) -> int:
    digest = blake2b(f"slots of {handler}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
