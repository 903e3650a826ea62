"""Statements that only read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal,
    select,
    union_all,
)

from purgatory.jobs.model.job import JobState
from purgatory.jobs.model.queries import JobFilter
from purgatory.jobs.sql.statements.columns import ALL, LAST_QUARANTINED, LIMIT
from purgatory.jobs.sql.statements.dialect import Dialect
from purgatory.jobs.sql.tables import (
    IS_FREE,
    IS_LEASED,
    IS_OPEN,
    job_counts,
    job_keys,
    jobs,
    quarantined_jobs,
)


class Reads:
    """Statements for the pool of readers."""

    def __init__(self, dialect: Dialect) -> None:
        self.get = select(*ALL).where(dialect.among(jobs.c.id, "ids"))
        self.counts = select(
            *(
                func.coalesce(func.sum(job_counts.c[str(state)]), 0).label(str(state))
                for state in JobState
            ),
            select(LAST_QUARANTINED).scalar_subquery().label("quarantined"),
        )
        self.active = func.coalesce(
            select(func.sum(job_counts.c.waiting + job_counts.c.running)).scalar_subquery(), 0
        )
        self.quarantined = (
            select(quarantined_jobs.c.id, quarantined_jobs.c.reason, quarantined_jobs.c.record)
            .order_by(quarantined_jobs.c.number.desc())
            .limit(LIMIT)
        )
        key = dialect.unnested("keys")
        self.keys_with_jobs = select(key).where(exists().where(IS_OPEN, job_keys.c.key == key))

    def next_due(self, now_ms: ColumnElement[int]) -> Select[Any]:
        """Return the statement for the earliest due_ms of what can be claimed."""
        free = select(func.min(jobs.c.due_ms)).where(IS_FREE)
        lapsed = select(func.min(jobs.c.due_ms)).where(IS_LEASED, jobs.c.lease_until_ms <= now_ms)
        both = union_all(free.correlate(None), lapsed).subquery()
        return select(func.min(both.c[0]))

    def page_ids(self, where: JobFilter, *, is_first: bool) -> Select[Any]:
        """Return the statement for ids with whether they match, the highest first.

        By the index of what is likely to match the fewest; the rest is compared row by row.
        """
        matches: list[ColumnElement[bool]] = []
        if where.state is not None:
            matches.append(jobs.c.state == bindparam("state"))
        if where.handler is not None:
            matches.append(jobs.c.handler == bindparam("handler"))
        column: Column[Any] = jobs.c.id
        if where.key is not None:
            column = job_keys.c.job_id
            page = select(column.label("id")).where(job_keys.c.key == bindparam("key"))
        elif matches:
            page = select(column.label("id")).where(matches.pop())
        else:
            page = select(column.label("id"))
        if not is_first:
            page = page.where(column < bindparam("after"))
        candidates = page.order_by(column.desc()).limit(bindparam("limit", type_=BigInteger))
        if not matches:
            return candidates.add_columns(literal(True).label("is_match"))
        ids = candidates.subquery()
        joined = ids.join(jobs, jobs.c.id == ids.c.id)
        is_match = and_(*matches).label("is_match")
        return select(ids.c.id, is_match).select_from(joined).order_by(ids.c.id.desc())
