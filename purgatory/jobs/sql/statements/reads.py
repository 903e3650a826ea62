"""Statements that only read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    literal_column,
    select,
    union_all,
)

from purgatory.jobs.model.job import BlockedBy, JobState
from purgatory.jobs.model.queries import MAX_BLOCKED, JobFilter
from purgatory.jobs.sql.statements.dialect import (
    ALL,
    LAST_QUARANTINED,
    LIMIT,
    NUMBERS,
    UNINDEXED_HANDLER,
    Dialect,
    began_before_fire,
)
from purgatory.jobs.sql.tables import (
    HAS_DEDUPE_KEY,
    HAS_SLOT,
    IS_BLOCKED,
    IS_BLOCKED_BY_PAUSE,
    IS_FREE,
    IS_LEASED,
    IS_OPEN,
    job_counts,
    job_keys,
    job_requests,
    jobs,
    outbox,
    paused_handlers,
)


class Reads:
    """Statements for the pool of readers."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.get = select(*ALL).where(dialect.among(jobs.c.id, "ids"))
        self.requests = (
            select(*ALL, job_requests.c.name, job_requests.c.status, job_requests.c.fingerprint)
            .join_from(job_requests, jobs, jobs.c.id == job_requests.c.job_id)
            .where(dialect.among(job_requests.c.name, "names"))
        )
        self.existing = select(jobs.c.id).where(dialect.among(jobs.c.id, "ids"))
        held_up = select(jobs.c.id).where(IS_BLOCKED).limit(literal(MAX_BLOCKED, BigInteger))
        self.counts = select(
            *(
                func.coalesce(func.sum(job_counts.c[str(state)]), 0).label(str(state))
                for state in JobState
            ),
            select(LAST_QUARANTINED).scalar_subquery().label("quarantined"),
            select(func.count()).select_from(held_up.subquery()).scalar_subquery().label("blocked"),
        )
        # A corrupt record may have anything there.
        by = case((jobs.c.blocked_by.in_(list(BlockedBy)), jobs.c.blocked_by))
        grouped = (jobs.c.handler, jobs.c.state, by.label("blocked"))
        self.handler_counts = (
            select(*grouped, func.count())
            .where(jobs.c.state.in_([JobState.WAITING, JobState.RUNNING]))
            .group_by(jobs.c.handler, jobs.c.state, literal_column("blocked"))
        )
        self.active = func.coalesce(
            select(func.sum(job_counts.c.waiting + job_counts.c.running)).scalar_subquery(), 0
        )
        fires = select(*outbox.c).where(outbox.c.number > bindparam("after", type_=BigInteger))
        fires = fires.order_by(outbox.c.number).limit(LIMIT)
        origin = bindparam("origin", type_=Text)
        self.own_fires = fires.where(outbox.c.origin == origin)
        self.fires_of_others = fires.where(outbox.c.origin != origin)
        self.stored_numbers = select(outbox.c.number).where(outbox.c.number.in_(NUMBERS))
        self.ids_for_fire = (
            select(job_keys.c.job_id)
            .select_from(job_keys.join(jobs, jobs.c.id == job_keys.c.job_id))
            .where(IS_OPEN, jobs.c.outcome.is_(None), began_before_fire())
            .where(job_keys.c.key == bindparam("key"))
            .order_by(job_keys.c.job_id)
            .limit(LIMIT)
        )
        names = select(func.array_agg(paused_handlers.c.name)).scalar_subquery()
        self.paused_names = names.label("paused")
        """In PostgreSQL, in one query with the clock."""
        self.paused = select(paused_handlers.c.name)
        of_paused = select(jobs.c.id).where(IS_BLOCKED_BY_PAUSE)
        of_paused = of_paused.limit(literal(MAX_BLOCKED, BigInteger))
        self.paused_jobs = select(func.count()).select_from(of_paused.subquery())
        end_ms = jobs.c.lease_until_ms
        is_later = end_ms > bindparam("after_ms", type_=BigInteger)
        self.last_leases = (
            select(jobs.c.id, jobs.c.leased_ms)
            .where(IS_LEASED, is_later)
            .order_by(end_ms.desc())
            .limit(LIMIT)
        )
        slot = (jobs.c.handler, jobs.c.concurrency_key)
        self.slots = (
            select(*slot, func.count())
            .where(HAS_SLOT, dialect.among(jobs.c.handler, "handlers"))
            .group_by(*slot)
        )
        self.dedupe_keys = select(jobs.c.dedupe_key).where(
            HAS_DEDUPE_KEY, dialect.among(jobs.c.dedupe_key, "dedupe_keys")
        )
        key = dialect.unnested("keys")
        self.keys_with_jobs = select(key).where(exists().where(IS_OPEN, job_keys.c.key == key))

    def next_due(self, now_ms: ColumnElement[int], *, of_handlers: bool) -> Select[Any]:
        """Return the statement for the earliest due_ms of what can be claimed."""
        free = select(func.min(jobs.c.due_ms)).where(IS_FREE)
        lapsed = select(func.min(jobs.c.due_ms)).where(IS_LEASED, jobs.c.lease_until_ms <= now_ms)
        if of_handlers:
            # Of each by its index.
            handler = self._dialect.unnested("handlers")
            first = select(func.min(jobs.c.due_ms)).correlate(handler.table)
            first = first.where(IS_FREE, jobs.c.handler == handler)
            free = select(func.min(first.scalar_subquery())).select_from(handler.table)
            lapsed = lapsed.where(self._dialect.among(UNINDEXED_HANDLER, "handlers"))
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
        if where.is_blocked:
            matches.append(IS_BLOCKED)
        keys = [name for name in ("key", "concurrency_key") if getattr(where, name) is not None]
        column: Column[Any] = jobs.c.id
        if keys:
            column = job_keys.c.job_id
            page = select(column.label("id")).where(job_keys.c.key == bindparam(keys.pop(0)))
        elif matches:
            # By the last of them.
            page = select(column.label("id")).where(matches.pop())
        else:
            page = select(column.label("id"))
        if not is_first:
            page = page.where(column < bindparam("after"))
        candidates = page.order_by(column.desc()).limit(bindparam("limit", type_=BigInteger))
        for name in keys:
            other = job_keys.alias()
            has_key = (other.c.job_id == jobs.c.id) & (other.c.key == bindparam(name))
            matches.append(exists().where(has_key))
        if not matches:
            return candidates.add_columns(literal(True).label("is_match"))
        ids = candidates.subquery()
        joined = ids.join(jobs, jobs.c.id == ids.c.id)
        is_match = and_(*matches).label("is_match")
        return select(ids.c.id, is_match).select_from(joined).order_by(ids.c.id.desc())
