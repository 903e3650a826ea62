"""Fires that leave the outbox, in the transaction that decides the jobs on their keys."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Fire, KeyFired
from purgatory.jobs.model.transitions import changed_by
from purgatory.jobs.sql.unit_of_work import UnitOfWork
from purgatory.jobs.stores.protocol import StoredFire, TakenFire, TakenFires


def take_fires(work: UnitOfWork, fires: Sequence[StoredFire], limits: JobLimits) -> TakenFires:
    """Decide the jobs on the keys of fires, and remove these, as in `Outbox.take_fires`."""
    return _Taking(work, limits).take(fires)


class _Taking:
    """One `TakeFires` step. Nothing here waits for the lock of another transaction."""

    # Invariant: no fire is taken whose key is in _waiting: those of a key are taken in order.

    def __init__(self, work: UnitOfWork, limits: JobLimits) -> None:
        self._work = work
        self._limits = limits
        self._room = limits.max_batch
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
