"""Locks in one order, so that transactions do not wait for one another in a circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Add, JobStep, KeyStep, Renew, Step
from purgatory.jobs.sql.records import is_storable
from purgatory.jobs.sql.unit_of_work import UnitOfWork


def lock_ahead(
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
        work.search(work.statements.locks.ahead, {**parameters, "limit": limit}, has_payload=False)
        work.note_payloads(full_ids)
