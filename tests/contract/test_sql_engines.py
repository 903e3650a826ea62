"""Engines of the application, with another driver than that of a URL."""

from __future__ import annotations

import asyncio

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import Purgatory
from purgatory.jobs import JobContext
from purgatory.jobs.sql import SqlJobStore, migrate
from tests.contract.postgresql_server import PostgresqlServer
from tests.patience import PATIENCE_S


async def test_jobs_through_psycopg(postgresql_server: PostgresqlServer) -> None:
    """They run at a deadline and by a fire, and commit with a session of the engine."""
    url = make_url(postgresql_server.url).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    await migrate(engine)
    purgatory = Purgatory(jobs=SqlJobStore(engine))
    ran: asyncio.Queue[str] = asyncio.Queue()

    @purgatory.handler("remind")
    async def remind(job: JobContext, name: str) -> None:
        ran.put_nowait(f"{name} {job.outcome}")

    try:
        async with purgatory, asyncio.timeout(PATIENCE_S):
            async with AsyncSession(engine) as session:
                await purgatory.defer("remind", "a", delay=900, keys=["k"], session=session)
                await session.rollback()
                await purgatory.defer("remind", "b", delay=0, session=session)
                await purgatory.defer("remind", "c", delay=900, keys=["k"])
                await purgatory.fire("k", session=session)
                await session.commit()
            assert {await ran.get(), await ran.get()} == {"b expired", "c fired"}
    finally:
        await migrate(engine, "base")
        await engine.dispose()
    assert ran.empty()
