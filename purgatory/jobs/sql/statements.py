"""Every statement, made once for each kind of database."""

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
    select,
    text,
    true,
    union_all,
    update,
)

from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.sql.records import record_of
from purgatory.jobs.sql.tables import (
    HAS_DEDUPE_KEY,
    IS_FINISHED,
    IS_FREE,
    IS_LEASED,
    IS_OPEN,
    job_counts,
    job_keys,
    jobs,
    quarantined_jobs,
)
from purgatory.jobs.stores.base import JobFilter

_STATES = [str(state) for state in JobState]
# What replacing a job changes beside what every step may change.
_REPLACED = (
    "handler",
    "payload_json",
    "keys_json",
    "on_fire",
    "max_attempts",
    "misfire",
    "ceiling_ms",
)
_FIXED = ("id", "created_ms", "dedupe_key")
_CHANGED = [column.name for column in jobs.c if column.name not in (*_FIXED, *_REPLACED)]
_changed_of = attrgetter(*_CHANGED)


class Statements:
    """What a store says to its database. Get one with `Statements.of`: they are shared."""

    @staticmethod
    @cache
    def of(dialect: str) -> Statements:
        """Return the statements for the dialect of that name."""
        return Statements(dialect)

    def __init__(self, dialect: str) -> None:
        self.is_sqlite = dialect == "sqlite"
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        full = list(jobs.c)
        # Payloads may be large, and most steps have no need of them.
        light = [
            literal("null", Text).label("payload_json") if column is jobs.c.payload_json else column
            for column in full
        ]
        by_id = self._among(jobs.c.id, "ids")

        self.get = select(*full).where(by_id)
        self.lock_full = self.get.order_by(jobs.c.id).with_for_update()
        self.lock_light = select(*light).where(by_id).order_by(jobs.c.id).with_for_update()
        self.lock_by_dedupe_key = (
            select(*full)
            .where(HAS_DEDUPE_KEY, self._among(jobs.c.dedupe_key, "dedupe_keys"))
            .order_by(jobs.c.id)
            .with_for_update()
        )
        on_keys = (
            select(*light)
            .select_from(job_keys.join(jobs, jobs.c.id == job_keys.c.job_id))
            # Of the job, too: PostgreSQL looks again at what it locks once it waited for another.
            .where(IS_OPEN, jobs.c.outcome.is_(None))
            .limit(bindparam("limit", type_=BigInteger))
            .with_for_update(of=jobs)
        )
        self.lock_on_key = on_keys.where(job_keys.c.key == bindparam("key")).order_by(
            job_keys.c.job_id
        )
        # In no order, which would take sorting: in PostgreSQL, `lock_ahead` comes first.
        self.lock_on_keys = on_keys.where(self._among(job_keys.c.key, "keys"))
        first = (jobs.c.due_ms, jobs.c.id)
        is_soon = jobs.c.due_ms <= bindparam("until_ms", type_=BigInteger)
        is_over = jobs.c.lease_until_ms <= bindparam("now_ms", type_=BigInteger)
        limit = bindparam("limit", type_=BigInteger)
        self.lock_free = (
            select(*full).where(IS_FREE, is_soon).order_by(*first).limit(limit)
        ).with_for_update(skip_locked=True)
        self.lock_lapsed = (
            select(*full).where(IS_LEASED, is_over, is_soon).order_by(*first).limit(limit)
        ).with_for_update(skip_locked=True)
        self.lock_finished = (
            select(jobs.c.id, jobs.c.state, jobs.c.finished_ms)
            .where(IS_FINISHED)
            .order_by(jobs.c.finished_ms, jobs.c.id)
            .limit(limit)
            .with_for_update()
        )

        self.lock_ahead = self._lock_ahead(full)
        asked = func.unnest(bindparam("requests", type_=ARRAY(BigInteger))).column_valued("request")
        self.lock_requests = select(func.pg_advisory_xact_lock(asked))

        self.insert_jobs = self._insert(jobs)
        self.insert_keys = self._insert(job_keys)
        self.update_jobs = update(jobs).where(jobs.c.id == bindparam("job_id", type_=Text))
        self.close_keys = (
            update(job_keys).where(self._among(job_keys.c.job_id, "ids")).values(is_open=False)
        )
        self.delete_keys = delete(job_keys).where(self._among(job_keys.c.job_id, "ids"))
        self.delete_jobs = delete(jobs).where(by_id)
        # Numbered without gaps, so that the highest number says how many there were: what the
        # database counts up by itself is not taken back with a transaction.
        last = func.coalesce(func.max(quarantined_jobs.c.number), 0)
        columns = [column for column in quarantined_jobs.c if not column.primary_key]
        given = [bindparam(column.name, type_=column.type) for column in columns]
        self.insert_quarantined = insert(quarantined_jobs).from_select(
            [quarantined_jobs.c.number, *columns], select(last + 1, *given)
        )
        kept = bindparam("kept", type_=BigInteger)
        self.trim_quarantined = delete(quarantined_jobs).where(
            quarantined_jobs.c.number <= select(last - kept).scalar_subquery()
        )

        self.first_free = select(func.min(jobs.c.due_ms)).where(IS_FREE)
        self.counts = select(
            *(func.coalesce(func.sum(job_counts.c[state]), 0).label(state) for state in _STATES),
            select(last).scalar_subquery().label("set_aside"),
        )
        self.active = func.coalesce(
            select(func.sum(job_counts.c.waiting + job_counts.c.running)).scalar_subquery(), 0
        )
        self.add_counts = text(
            f"INSERT INTO {job_counts.name} (shard, {', '.join(_STATES)})"
            f" VALUES (:shard, {', '.join(f':{state}' for state in _STATES)})"
            " ON CONFLICT (shard) DO UPDATE SET "
            + ", ".join(f"{s} = {job_counts.name}.{s} + excluded.{s}" for s in _STATES)
        )
        self.count_jobs = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        self.delete_counts = delete(job_counts)
        self.quarantined = (
            select(quarantined_jobs.c.id, quarantined_jobs.c.reason, quarantined_jobs.c.record)
            .order_by(quarantined_jobs.c.number.desc())
            .limit(limit)
        )
        self.keys_with_jobs = self._keys_with_jobs()

    def many(self, values: Iterable[str]) -> Any:
        """Return the parameter for a list of texts."""
        # One parameter, so that the statement is the same, and prepared, for any number of values.
        return json.dumps(list(values)) if self.is_sqlite else list(values)

    def rows(self, records: list[dict[str, Any]]) -> Any:
        """Return the parameters with which `insert_jobs` and `insert_keys` write records."""
        if self.is_sqlite:
            return records
        return {name: [record[name] for record in records] for name in records[0]}

    @staticmethod
    def change(job: Job, *, is_replaced: bool = False) -> dict[str, Any]:
        """Return the parameters with which `update_jobs` writes what may have changed."""
        # Thousands of leases are prolonged every few seconds: only what is needed is looked at.
        changes = dict(zip(_CHANGED, _changed_of(job), strict=True))
        if is_replaced:
            record = record_of(job)
            changes |= {name: record[name] for name in _REPLACED}
        changes["job_id"] = job.id
        return changes

    def server_clock(self) -> ColumnElement[int]:
        """Return the server's wall time in milliseconds, rounded down, as an expression."""
        now = func.floor(func.extract("epoch", func.clock_timestamp()) * 1_000)
        # A subquery is computed once, before the scan: an index can be searched for its value.
        return select(now.cast(BigInteger)).scalar_subquery()

    def next_due(self, now_ms: ColumnElement[int]) -> Select[Any]:
        """Return the earliest due_ms of what can be claimed."""
        lapsed = select(func.min(jobs.c.due_ms)).where(IS_LEASED, jobs.c.lease_until_ms <= now_ms)
        both = union_all(self.first_free.correlate(None), lapsed).subquery()
        return select(func.min(both.c[0]))

    def page_ids(self, where: JobFilter, *, is_first: bool) -> Select[Any]:
        """Return ids with whether they match, the highest first.

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

    def _lock_ahead(self, columns: list[Column[Any]]) -> Select[Any]:
        """Lock jobs by id, by dedupe key and on keys, in order of their ids. PostgreSQL only.

        With the payloads of `full_ids` only.
        """
        full_ids = select(func.unnest(bindparam("full_ids", type_=ARRAY(Text))))
        payload = case((jobs.c.id.in_(full_ids), jobs.c.payload_json), else_="null")
        shown = [
            payload.label("payload_json") if column is jobs.c.payload_json else column
            for column in columns
        ]
        keys = func.unnest(bindparam("keys", type_=ARRAY(Text))).table_valued("key")
        keys = keys.render_derived()
        on_key = (
            select(job_keys.c.job_id)
            .where(IS_OPEN, job_keys.c.key == keys.c.key)
            .order_by(job_keys.c.job_id)
            .limit(bindparam("limit", type_=BigInteger))
            .lateral()
        )
        # Each part by its own index.
        found = union_all(
            select(func.unnest(bindparam("ids", type_=ARRAY(Text)))),
            select(on_key.c.job_id).select_from(keys).join(on_key, true()),
            select(jobs.c.id).where(HAS_DEDUPE_KEY, self._among(jobs.c.dedupe_key, "dedupe_keys")),
        )
        by_id = jobs.c.id == any_(func.array(found.scalar_subquery()))
        return select(*shown).where(by_id).order_by(jobs.c.id).with_for_update(of=jobs)

    def _among(self, column: Column[Any], name: str) -> ColumnElement[bool]:
        if not self.is_sqlite:
            return column == any_(bindparam(name, type_=ARRAY(Text)))
        values = func.json_each(bindparam(name, type_=Text)).table_valued("value")
        return column.in_(select(values.c.value))

    def _insert(self, table: Table) -> Any:
        if self.is_sqlite:
            return insert(table)
        # A list for each column: a single command for any number of rows, which executemany is not.
        lists = [bindparam(column.name, type_=ARRAY(column.type)) for column in table.c]
        columns = [column.name for column in table.c]
        given = func.unnest(*lists).table_valued(*columns).render_derived()
        return insert(table).from_select(columns, select(*given.c))

    def _keys_with_jobs(self) -> Select[Any]:
        parameter = bindparam("keys", type_=Text if self.is_sqlite else ARRAY(Text))
        if self.is_sqlite:
            asked = func.json_each(parameter).table_valued("value").c.value
        else:
            asked = func.unnest(parameter).table_valued("value").render_derived().c.value
        found = exists().where(IS_OPEN, job_keys.c.key == asked)
        return select(asked).where(found)
