"""SQL statements, built once for each dialect.

Here: what is sent to the database, as SQLAlchemy expressions. Not here: when it is sent (the unit
of work and the reader), and what a row means (`sql.tables`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    not_,
    or_,
    select,
    text,
    true,
    union_all,
    update,
)

from purgatory.jobs.model.job import MAX_BLOCKED, BlockedBy, Job, JobFilter, JobState
from purgatory.jobs.model.spec import MAX_REQUESTS
from purgatory.jobs.sql.tables import (
    HAS_DEDUPE_KEY,
    HAS_SLOT,
    IS_BLOCKED,
    IS_BLOCKED_BY_HANDLER,
    IS_BLOCKED_BY_KEY,
    IS_BLOCKED_BY_PAUSE,
    IS_FINISHED,
    IS_FREE,
    IS_LEASED,
    IS_OPEN,
    job_counts,
    job_keys,
    job_requests,
    jobs,
    outbox,
    paused_handlers,
    quarantined_jobs,
    record_of,
)

ALL = list(jobs.c)
# Payloads may be large, and most steps have no need of them.
WITHOUT_PAYLOAD = [
    literal("null", Text).label("payload_json") if column is jobs.c.payload_json else column
    for column in ALL
]
# For conditions on few rows that another index finds: that by handler would read its whole history,
# and a database without statistics takes it.
UNINDEXED_HANDLER = jobs.c.handler.concat("")
LIMIT = bindparam("limit", type_=BigInteger)
NUMBERS = bindparam("numbers", expanding=True, type_=BigInteger)


def began_before_fire() -> ColumnElement[bool]:
    """Return the condition that the round of a job began before the parameter `fired_ms`."""
    fired_ms = bindparam("fired_ms", type_=BigInteger)
    return or_(jobs.c.round_ms.is_(None), jobs.c.round_ms <= fired_ms)


LAST_QUARANTINED = func.coalesce(func.max(quarantined_jobs.c.number), 0)
"""How many records were ever quarantined: they are numbered without gaps."""

# How long a transaction waits for a row that another one has locked, and how long the server keeps
# its locks while nothing is heard of this process: the rows are free for others after that.
LOCK_WAIT_MS = 1_000
SILENCE_MS = 5_000


class Dialect:
    """The forms of one kind of database."""

    def __init__(self, name: str) -> None:
        self.is_sqlite = name == "sqlite"
        # A reader that becomes a writer could not wait for another writer of a SQLite file.
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self.transaction_bounds: list[ColumnElement[Any]] = []
        """Columns of the first statement of a transaction, which set its timeouts."""
        if not self.is_sqlite:
            # For this transaction only: the connection may be an application's, or a pooler's, and
            # then be used by others. Without a round trip of their own.
            self.transaction_bounds = [
                func.set_config("lock_timeout", str(LOCK_WAIT_MS), true()),
                func.set_config("idle_in_transaction_session_timeout", str(SILENCE_MS), true()),
            ]

    def many(self, values: Iterable[str]) -> Any:
        """Return the parameter for a list of texts."""
        # One parameter, so that the statement is the same, and prepared, for any number of values.
        return json.dumps(list(values)) if self.is_sqlite else list(values)

    def rows(self, records: list[dict[str, Any]]) -> Any:
        """Return the parameters with which the statement of `insert` writes records."""
        if self.is_sqlite:
            return records
        return {name: [record[name] for record in records] for name in records[0]}

    def among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Return the condition that a column is one of the parameter `name`, which is `many`."""
        if not self.is_sqlite:
            return column == any_(bindparam(name, type_=ARRAY(Text)))
        return column.in_(select(self.unnested(name)))

    def unnested(self, name: str) -> ColumnElement[Any]:
        """Return the values of the parameter `name`, which is `many`, as a column."""
        if self.is_sqlite:
            return func.json_each(bindparam(name, type_=Text)).table_valued("value").c.value
        values = func.unnest(bindparam(name, type_=ARRAY(Text))).table_valued("value")
        return values.render_derived().c.value

    def insert(self, table: Table) -> Any:
        """Return the statement that inserts `rows`."""
        if self.is_sqlite:
            return insert(table)
        # A list for each column: a single command for any number of rows, which executemany is not.
        lists = [bindparam(column.name, type_=ARRAY(column.type)) for column in table.c]
        columns = [column.name for column in table.c]
        given = func.unnest(*lists).table_valued(*columns).render_derived()
        return insert(table).from_select(columns, select(*given.c))

    def server_clock(self) -> ColumnElement[int]:
        """Return the server's wall time in milliseconds, rounded down, as an expression."""
        now = func.floor(func.extract("epoch", func.clock_timestamp()) * 1_000)
        # A subquery is computed once, before the scan: an index can be searched for its value.
        return select(now.cast(BigInteger)).scalar_subquery()


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


_FIRST = (jobs.c.due_ms, jobs.c.id)


class Locks:
    """Locking statements. SQLite has one writer at a time, and SQLAlchemy leaves FOR UPDATE out."""

    def __init__(self, dialect: Dialect) -> None:
        self._lock_by_id(dialect)
        self._lock_on_keys(dialect)
        self._lock_due_jobs(dialect)
        self._lock_blocked()
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
        self.unlocked_by_id = self.by_id_without_payload.with_for_update(skip_locked=True)
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

    def _lock_blocked(self) -> None:
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


_STATES = [str(state) for state in JobState]
# What most steps change. The rest, but for slots, is of those that replace a job, let it wait again
# or count its keys.
_OFTEN = (
    *("deadline_ms", "due_ms", "state", "outcome", "fired_key", "fired_json", "attempt", "epoch"),
    *("worker", "lease_until_ms", "leased_ms", "blocked_by", "lateness_ms", "finished_ms"),
    *("error", "version"),
)
_often_of = attrgetter(*_OFTEN)
_rest_of = attrgetter(*(name for name in Job.__slots__ if name not in (*_OFTEN, "slot_ms")))


class Writes:
    """Statements of a transaction that change rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.insert_jobs = dialect.insert(jobs)
        self.update_jobs = update(jobs).where(jobs.c.id == bindparam("job_id", type_=Text))
        self.delete_jobs = delete(jobs).where(dialect.among(jobs.c.id, "ids"))

        of_jobs = dialect.among(job_keys.c.job_id, "ids")
        self.insert_keys = dialect.insert(job_keys)
        self.close_keys = update(job_keys).where(of_jobs).values(is_open=False)
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

        self.add_counts = text(
            f"INSERT INTO {job_counts.name} (shard, {', '.join(_STATES)})"  # noqa: S608 - names of our columns
            f" VALUES (:shard, {', '.join(f':{state}' for state in _STATES)})"
            " ON CONFLICT (shard) DO UPDATE SET "
            + ", ".join(f"{s} = {job_counts.name}.{s} + excluded.{s}" for s in _STATES)
        )

    @staticmethod
    def change(old: Job, job: Job) -> dict[str, Any]:
        """Return the parameters with which `update_jobs` writes what steps made of a stored job."""
        # Thousands of leases are renewed every few seconds: only what is needed is looked at.
        changes = dict(zip(_OFTEN, _often_of(job), strict=True))
        if job.slot_ms != old.slot_ms:
            changes["slot_ms"] = job.slot_ms
        # Leases and slots leave the version.
        if job.version != old.version and _rest_of(job) != _rest_of(old):
            # Only what differs: of a job that was read without its payload, that does not.
            stored = record_of(old)
            changes |= {
                name: value for name, value in record_of(job).items() if value != stored[name]
            }
        changes["job_id"] = job.id
        return changes


class Statements:
    """All statements for one dialect. Get them with `Statements.of`: they are shared."""

    @staticmethod
    @cache
    def of(dialect: str) -> Statements:
        """Return the statements for the dialect of that name."""
        return Statements(Dialect(dialect))

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.reads = Reads(dialect)
        self.locks = Locks(dialect)
        self.writes = Writes(dialect)
