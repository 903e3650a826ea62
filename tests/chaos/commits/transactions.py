"""The application: a change, a job and a fire in each transaction, some of them rolled back."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass

from sqlalchemy import Column, MetaData, Table, Text, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from purgatory import Purgatory
from purgatory.jobs import owed_fires
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.sql.tables import jobs, outbox

metadata = MetaData()
ledger = Table("ledger", metadata, Column("name", Text, primary_key=True))

HOUR_S = 3_600
ROLLED_BACK = 0.3
# So that each process also fires what the one before it has left.
POLL_S = 0.05
TAKEOVER_MS = 100


@dataclass(frozen=True)
class Verdict:
    """What was found in the database."""

    transactions: int
    committed: int
    faults: list[str]


def engine_of(url: str) -> AsyncEngine:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    scheme, _, rest = url.partition("://")
    return create_async_engine(f"{driver[scheme]}://{rest}")


async def make_tables(url: str) -> None:
    """Make the tables of jobs, and the application's."""
    await migrate(url)
    engine = engine_of(url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()


async def run_transactions(url: str, name: str, ready: int) -> None:
    """Run transactions until killed; write a byte to `ready` before each of them ends."""
    owed_fires.OUTBOX_POLL_S, owed_fires.TAKEOVER_MS = POLL_S, TAKEOVER_MS  # type: ignore[misc]
    engine = engine_of(url)
    async with Purgatory(jobs=SqlJobStore(url)) as purgatory:
        purgatory.handled_elsewhere(["waiter", "job"])
        number = 0
        while True:
            number += 1
            await _run_transaction(purgatory, engine, f"{name}-{number}", ready)


async def _run_transaction(
    purgatory: Purgatory, engine: AsyncEngine, name: str, ready: int
) -> None:
    await purgatory.defer("waiter", name, delay=HOUR_S, keys=[name])
    async with AsyncSession(engine) as session:
        await session.execute(ledger.insert().values(name=name))
        await purgatory.defer("job", name, delay=HOUR_S, session=session)
        await purgatory.fire(name, session=session)
        os.write(ready, b".")
        if random.random() < ROLLED_BACK:
            await session.rollback()
        else:
            await session.commit()


async def judge(url: str) -> Verdict:
    """Fire what is left, and compare: committed means deferred and fired, else neither."""
    owed_fires.OUTBOX_POLL_S, owed_fires.TAKEOVER_MS = POLL_S, TAKEOVER_MS  # type: ignore[misc]
    engine = engine_of(url)
    async with Purgatory(jobs=SqlJobStore(url)), engine.connect() as connection:
        async with asyncio.timeout(60):
            while (await connection.execute(select(outbox.c.number).limit(1))).first():
                await connection.rollback()
                await asyncio.sleep(POLL_S)
        await connection.rollback()
        committed = set(await connection.scalars(select(ledger.c.name)))
        rows = (
            await connection.execute(select(jobs.c.handler, jobs.c.payload_json, jobs.c.outcome))
        ).all()
    await engine.dispose()
    waiters = {payload[1:-1]: outcome for handler, payload, outcome in rows if handler == "waiter"}
    deferred = [payload[1:-1] for handler, payload, _ in rows if handler == "job"]
    faults = [f"{name}: committed, and not deferred" for name in committed - set(deferred)]
    faults += [f"{name}: deferred, and not committed" for name in set(deferred) - committed]
    faults += [f"{name}: deferred twice" for name in set(deferred) if deferred.count(name) > 1]
    for name, outcome in waiters.items():
        if (outcome == "fired") != (name in committed):
            faults.append(f"{name}: {outcome}, and committed is {name in committed}")
    faults += [f"{name}: nobody waits" for name in committed - set(waiters)]
    return Verdict(len(waiters), len(committed), faults)
