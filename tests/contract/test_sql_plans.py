"""What claims of some handlers read in a database."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import BigInteger, event, insert, literal, text
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.jobs.model import JobSpec
from purgatory.jobs.sql.statements import Statements
from purgatory.jobs.sql.tables import job_keys, jobs, record_of
from tests.contract.sql_job_stores import SqlJobStores


def explain_all(engine: AsyncEngine) -> None:
    """Have every statement of `engine` explained instead of done."""
    word = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"

    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def explain(
        connection: Any, cursor: Any, sql: str, given: Any, context: Any, is_many: bool
    ) -> tuple[str, Any]:
        return f"{word} {sql}", given


async def plans(engine: AsyncEngine) -> list[str]:
    """How a claim of two handlers, and the look before it, find jobs: free, lapsed, next."""
    statements = Statements.of(engine.dialect.name)
    handlers = {"handlers": statements.dialect.many(["a", "b"])}
    soon = handlers | {"until_ms": 2_000, "limit": 250}
    next_due = statements.reads.next_due(literal(1, BigInteger), of_handlers=True)
    found = []
    async with engine.connect() as connection:
        explain_all(engine)
        for statement, asked in (
            (statements.locks.free, soon),
            (statements.locks.lapsed, soon | {"now_ms": 1}),
            (next_due, handlers),
        ):
            result = await connection.execute(statement, asked)
            found.append(str(result.cursor.fetchall()))
    await engine.dispose()
    return found


async def test_claims_by_handler_read_no_history(database: SqlJobStores) -> None:
    """Without statistics: the index of a handler's jobs has a million of those that have ended."""
    engine = database.engine()
    if engine.dialect.name != "sqlite":
        # The schema was used before: indexes that are large and hold nothing cost more.
        async with engine.begin() as connection:
            await connection.execute(text(f"TRUNCATE {jobs.name}, {job_keys.name}"))
    for plan in await plans(engine):
        assert not re.search(r"ix_purgatory_jobs_handler\b", plan), plan


async def test_claims_by_handler_read_no_jobs_of_others(database: SqlJobStores) -> None:
    """However many of those are due."""
    engine = database.engine()
    specs = [JobSpec.of("other", wall_ms=0, delay=1) for _ in range(3_000)]
    async with engine.begin() as connection:
        await connection.execute(insert(jobs), [record_of(spec.job(0, 1_000)) for spec in specs])
        await connection.execute(text("ANALYZE"))
    free, _, next_due = await plans(engine)
    assert "ix_purgatory_jobs_free" in free, free
    assert "ix_purgatory_jobs_free" in next_due, next_due
