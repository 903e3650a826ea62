"""Statements that write."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, Text, bindparam, delete, func, insert, select, text, update

from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.spec import MAX_REQUESTS
from purgatory.jobs.sql.statements.dialect import LAST_QUARANTINED, NUMBERS, Dialect
from purgatory.jobs.sql.tables import (
    fired_before_json,
    job_counts,
    job_keys,
    job_requests,
    jobs,
    outbox,
    paused_handlers,
    quarantined_jobs,
    record_of,
)

_STATES = [str(state) for state in JobState]
# What replacing a job, or letting it wait again, changes beside what every step may change. Few
# jobs take and leave slots: those are written apart.
_REPLACED = (
    "handler",
    "payload_json",
    "keys_json",
    "on_fire",
    "owner",
    "max_attempts",
    "misfire",
    "ceiling_ms",
    "needed",
    "fired_before_json",
    "round",
    "round_ms",
    "concurrency_key",
    "slot_ms",
    "traceparent",
)
_FIXED = ("id", "created_ms", "dedupe_key")
_CHANGED = [column.name for column in jobs.c if column.name not in (*_FIXED, *_REPLACED)]
_changed_of = attrgetter(*_CHANGED)


class Writes:
    """Statements of a transaction that change rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.insert_jobs = dialect.insert(jobs)
        self.update_jobs = update(jobs).where(jobs.c.id == bindparam("job_id", type_=Text))
        self.delete_jobs = delete(jobs).where(dialect.among(jobs.c.id, "ids"))

        of_jobs = dialect.among(job_keys.c.job_id, "ids")
        self.insert_keys = dialect.insert(job_keys)
        self.close_keys = update(job_keys).where(of_jobs).values(is_open=False)
        self.close_key = (
            update(job_keys)
            .where(job_keys.c.key == bindparam("of_key", type_=Text))
            .where(job_keys.c.job_id == bindparam("of_job", type_=Text))
            .values(is_open=False)
        )
        self.delete_keys = delete(job_keys).where(of_jobs)

        self.insert_requests = dialect.insert(job_requests)
        self.delete_requests = delete(job_requests).where(
            dialect.among(job_requests.c.job_id, "ids")
        )
        job_id = bindparam("of_job", type_=Text)
        latest = (
            select(job_requests.c.noted_ms)
            .where(job_requests.c.job_id == job_id)
            .order_by(job_requests.c.noted_ms.desc())
            .limit(1)
            .offset(MAX_REQUESTS - 1)
        )
        self.trim_requests = (
            delete(job_requests)
            .where(job_requests.c.job_id == job_id)
            .where(job_requests.c.noted_ms < latest.scalar_subquery())
        )

        self.delete_fires = delete(outbox).where(outbox.c.number.in_(NUMBERS))

        # Numbered without gaps: a sequence of the database is not rolled back with a transaction.
        columns = [column for column in quarantined_jobs.c if not column.primary_key]
        given = [bindparam(column.name, type_=column.type) for column in columns]
        self.insert_quarantined = insert(quarantined_jobs).from_select(
            [quarantined_jobs.c.number, *columns], select(LAST_QUARANTINED + 1, *given)
        )
        kept = bindparam("kept", type_=BigInteger)
        self.trim_quarantined = delete(quarantined_jobs).where(
            quarantined_jobs.c.number <= select(LAST_QUARANTINED - kept).scalar_subquery()
        )

        name = bindparam("handler", type_=Text)
        self.pause = text(
            f"INSERT INTO {paused_handlers.name} (name) VALUES (:handler) ON CONFLICT DO NOTHING"  # noqa: S608 - our table
        )
        self.resume = delete(paused_handlers).where(paused_handlers.c.name == name)

        self.count_jobs = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        self.delete_counts = delete(job_counts)
        self.add_counts = text(
            f"INSERT INTO {job_counts.name} (shard, {', '.join(_STATES)})"  # noqa: S608 - names of our columns
            f" VALUES (:shard, {', '.join(f':{state}' for state in _STATES)})"
            " ON CONFLICT (shard) DO UPDATE SET "
            + ", ".join(f"{s} = {job_counts.name}.{s} + excluded.{s}" for s in _STATES)
        )

    @staticmethod
    def change(job: Job, *, is_replaced: bool = False) -> dict[str, Any]:
        """Return the parameters with which `update_jobs` writes what may have changed."""
        # Thousands of leases are renewed every few seconds: only what is needed is looked at.
        changes = dict(zip(_CHANGED, _changed_of(job), strict=True))
        if is_replaced:
            record = record_of(job)
            changes |= {name: record[name] for name in _REPLACED}
        changes["job_id"] = job.id
        return changes

    @staticmethod
    def change_of_count(job: Job) -> dict[str, Any]:
        """Return the parameters with which `update_jobs` writes the keys that have fired."""
        return {"job_id": job.id, "fired_before_json": fired_before_json(job)}
