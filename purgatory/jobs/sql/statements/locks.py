"""Statements that read jobs and lock them until the end of the transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Select,
    Text,
    any_,
    bindparam,
    case,
    func,
    not_,
    select,
    true,
    union_all,
)

from purgatory.jobs.sql.statements.dialect import (
    ALL,
    LIMIT,
    NUMBERS,
    UNINDEXED_HANDLER,
    WITHOUT_PAYLOAD,
    Dialect,
    began_before_fire,
)
from purgatory.jobs.sql.tables import (
    HAS_DEDUPE_KEY,
    IS_BLOCKED_BY_HANDLER,
    IS_BLOCKED_BY_KEY,
    IS_BLOCKED_BY_PAUSE,
    IS_FINISHED,
    IS_FREE,
    IS_LEASED,
    IS_OPEN,
    job_keys,
    jobs,
    outbox,
    paused_handlers,
)

_FIRST = (jobs.c.due_ms, jobs.c.id)


class Locks:
    """Locking statements. SQLite has one writer at a time, and SQLAlchemy leaves FOR UPDATE out."""

    def __init__(self, dialect: Dialect) -> None:
        self._lock_by_id(dialect)
        self._lock_on_keys(dialect)
        self._lock_due_jobs(dialect)
        self._lock_places()
        self.finished = (
            select(jobs.c.id, jobs.c.state, jobs.c.finished_ms)
            .where(IS_FINISHED)
            .order_by(jobs.c.finished_ms, jobs.c.id)
            .limit(LIMIT)
            .with_for_update()
        )
        # What another relay has locked, it takes.
        self.stored_fires = (
            select(outbox.c.number)
            .where(outbox.c.number.in_(NUMBERS))
            .order_by(outbox.c.number)
            .with_for_update(skip_locked=True)
        )
        self.in_order = _in_order(dialect)
        asked = func.unnest(bindparam("numbers", type_=ARRAY(BigInteger))).column_valued("number")
        self.numbers = select(func.pg_advisory_xact_lock(asked))

    def _lock_by_id(self, dialect: Dialect) -> None:
        by_id = dialect.among(jobs.c.id, "ids")
        self.by_id = select(*ALL).where(by_id).order_by(jobs.c.id).with_for_update()
        self.by_id_without_payload = (
            select(*WITHOUT_PAYLOAD).where(by_id).order_by(jobs.c.id).with_for_update()
        )
        self.unlocked_by_id = (
            select(*WITHOUT_PAYLOAD)
            .where(by_id)
            .order_by(jobs.c.id)
            .with_for_update(skip_locked=True)
        )
        self.by_dedupe_key = (
            select(*ALL)
            .where(HAS_DEDUPE_KEY, dialect.among(jobs.c.dedupe_key, "dedupe_keys"))
            .order_by(jobs.c.id)
            .with_for_update()
        )

    def _lock_on_keys(self, dialect: Dialect) -> None:
        open_jobs = (
            select(*WITHOUT_PAYLOAD)
            .select_from(job_keys.join(jobs, jobs.c.id == job_keys.c.job_id))
            # Of the job, too: PostgreSQL looks again at what it locks once it waited for another.
            .where(IS_OPEN, jobs.c.outcome.is_(None))
            .limit(LIMIT)
        )
        on_key = open_jobs.where(job_keys.c.key == bindparam("key")).order_by(job_keys.c.job_id)
        self.on_key = on_key.with_for_update(of=jobs)
        # What another transaction has locked must not hold up the fires behind this one.
        self.on_key_for_fire = on_key.where(began_before_fire()).with_for_update(
            of=jobs, skip_locked=True
        )
        # In no order, which would take sorting: in PostgreSQL, `in_order` comes first.
        on_keys = open_jobs.where(dialect.among(job_keys.c.key, "keys"))
        self.on_keys = on_keys.with_for_update(of=jobs)

    def _lock_due_jobs(self, dialect: Dialect) -> None:
        is_soon = jobs.c.due_ms <= bindparam("until_ms", type_=BigInteger)
        is_over = jobs.c.lease_until_ms <= bindparam("now_ms", type_=BigInteger)
        self.free = _free(dialect)
        self.lapsed = (
            select(*ALL)
            .where(IS_LEASED, is_over, is_soon, dialect.among(UNINDEXED_HANDLER, "handlers"))
            .order_by(*_FIRST)
            .limit(LIMIT)
            .with_for_update(skip_locked=True)
        )
        # Until the end of the transaction nobody resumes what it may block.
        self.paused = select(paused_handlers.c.name).with_for_update(read=True)
        self.paused_jobs = (
            select(*ALL)
            .where(IS_BLOCKED_BY_PAUSE)
            .where(not_(dialect.among(jobs.c.handler, "paused")))
            .order_by(jobs.c.id)
            .limit(LIMIT)
            .with_for_update()
        )

    def _lock_places(self) -> None:
        of_handler = jobs.c.handler == bindparam("handler")
        of_key = jobs.c.concurrency_key == bindparam("concurrency_key")
        blocked = select(*WITHOUT_PAYLOAD).where(of_handler).order_by(*_FIRST).limit(LIMIT)
        self.any_blocked = blocked.where(IS_BLOCKED_BY_HANDLER).with_for_update()
        self.any_blocked_by_key = blocked.where(IS_BLOCKED_BY_KEY, of_key).with_for_update()
        self.blocked = self.any_blocked.with_for_update(skip_locked=True)
        self.blocked_by_key = self.any_blocked_by_key.with_for_update(skip_locked=True)


def _free(dialect: Dialect) -> Select[Any]:
    """Lock the first jobs of some handlers that can be claimed.

    By the index of each: what is due of others, and may be very much, is not looked at. In
    PostgreSQL, up to LIMIT jobs of each handler are locked, and seem locked to claims that are made
    at the same time.
    """
    handler = dialect.unnested("handlers")
    first = jobs.alias()
    is_soon = first.c.due_ms <= bindparam("until_ms", type_=BigInteger)
    of_handler = (
        select(first)
        .where(IS_FREE, first.c.handler == handler, is_soon)
        .order_by(first.c.due_ms, first.c.id)
        .limit(LIMIT)
    )
    if dialect.is_sqlite:
        # Without LATERAL; nor does anything have to be locked.
        ids = of_handler.with_only_columns(first.c.id).correlate(handler.table)
        found = select(*ALL).select_from(handler.table).join(jobs, jobs.c.id.in_(ids))
        return found.order_by(*_FIRST).limit(LIMIT)
    free = of_handler.with_for_update(skip_locked=True).lateral("free")
    return (
        select(*free.c)
        .select_from(handler.table.join(free, true()))
        .order_by(free.c.due_ms, free.c.id)
        .limit(LIMIT)
    )


def _in_order(dialect: Dialect) -> Select[Any]:
    """Lock jobs by id, by dedupe key and on keys, in order of their ids. PostgreSQL only.

    With the payloads of `full_ids` only.
    """
    full_ids = select(func.unnest(bindparam("full_ids", type_=ARRAY(Text))))
    payload = case((jobs.c.id.in_(full_ids), jobs.c.payload_json), else_="null")
    columns = [
        payload.label("payload_json") if column is jobs.c.payload_json else column for column in ALL
    ]
    keys = func.unnest(bindparam("keys", type_=ARRAY(Text))).table_valued("key").render_derived()
    on_key = (
        select(job_keys.c.job_id)
        .where(IS_OPEN, job_keys.c.key == keys.c.key)
        .order_by(job_keys.c.job_id)
        .limit(LIMIT)
        .lateral()
    )
    # Each part by its own index.
    found = union_all(
        select(func.unnest(bindparam("ids", type_=ARRAY(Text)))),
        select(on_key.c.job_id).select_from(keys).join(on_key, true()),
        select(jobs.c.id).where(HAS_DEDUPE_KEY, dialect.among(jobs.c.dedupe_key, "dedupe_keys")),
    )
    by_id = jobs.c.id == any_(func.array(found.scalar_subquery()))
    return select(*columns).where(by_id).order_by(jobs.c.id).with_for_update(of=jobs)
