"""Stored fires: what locks hold up, and which signals are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from purgatory import Limits, Purgatory
from purgatory.jobs import JobLimits, JobState, owed_fires
from purgatory.jobs.sql import SqlJobStore
from purgatory.jobs.stores.protocol import NewFire, StoredFire, TakenFires
from tests.contract.sql_job_stores import SqliteJobStores, SqlJobStores
from tests.patience import until


class CountingStore(SqlJobStore):
    """Counts the looks of the relay, and keeps the results of its transactions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taken: list[TakenFires] = []
        self.looks = 0

    async def stored_fires(self, *args: Any, **options: Any) -> list[StoredFire]:
        found = await super().stored_fires(*args, **options)
        self.looks += 1
        return found

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        self.taken.append(await super().take_fires(fires))
        return self.taken[-1]


@pytest.fixture
async def store(database: SqlJobStores, engine: AsyncEngine) -> CountingStore:
    limits = JobLimits(max_batch=10)
    url = database.url if isinstance(database, SqliteJobStores) else engine
    return CountingStore(url, limits=limits)


@pytest.fixture
async def purgatory(store: CountingStore) -> AsyncIterator[Purgatory]:
    async with Purgatory(jobs=store, limits=Limits(max_signals_per_key=1_000)) as purgatory:
        purgatory.handled_elsewhere(["note"])
        yield purgatory


@pytest.fixture
async def console(database: SqlJobStores, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that stays open."""
    if isinstance(database, SqliteJobStores):
        pytest.skip("SQLite has one writer at a time")
    async with engine.connect() as connection:
        yield connection


async def fire_all(purgatory: Purgatory, engine: AsyncEngine, *fires: tuple[str, int]) -> None:
    async with AsyncSession(engine) as session:
        for key, number in fires:
            await purgatory.fire(key, number, session=session)
        await session.commit()


def fired(purgatory: Purgatory, key: str, since: str) -> list[Any]:
    signals = purgatory.signals
    found = signals.read(key, signals.position(key, since), 1_000)
    return [signals.value(each) for each in found]


async def test_a_locked_job_holds_up_its_key_only(
    purgatory: Purgatory, store: CountingStore, engine: AsyncEngine, console: AsyncConnection
) -> None:
    """However many fires are on it; they follow in order once it is free."""
    since = purgatory.cursor("k", "other")
    locked = await purgatory.defer("note", delay=600, keys=["k"], on_fire="cancel")
    free = await purgatory.defer("note", delay=600, keys=["k"], on_fire="cancel")
    job = await purgatory.defer("note", delay=600, keys=["other"], on_fire="cancel")
    lock = text("SELECT 1 FROM purgatory_jobs WHERE id = :id FOR UPDATE")
    await console.execute(lock, {"id": locked.id})
    on_key = [("k", number) for number in range(2 * owed_fires.BATCH)]
    await fire_all(purgatory, engine, *on_key, ("other", 7))
    assert (await purgatory.park("other", cursor=since, timeout=60)).value == 7
    assert (await job.get()).state is JobState.CANCELLED
    assert (await free.get()).state is JobState.CANCELLED
    assert (await locked.get()).is_undecided and fired(purgatory, "k", since) == []
    tries = len(store.taken)
    await asyncio.sleep(0.5)
    # Not at once again and again.
    assert len(store.taken) - tries < 30
    await console.rollback()
    await until(lambda: len(fired(purgatory, "k", since)) == len(on_key))
    assert fired(purgatory, "k", since) == [number for _, number in on_key]
    assert (await locked.get()).fired_json == "0"


async def test_a_locked_fire_holds_up_its_key_only(
    store: CountingStore,
    engine: AsyncEngine,
    console: AsyncConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for again after a while, and not at once."""
    monkeypatch.setattr(owed_fires, "OUTBOX_POLL_S", 600.0)
    async with Purgatory(jobs=store) as purgatory:
        since = purgatory.cursor("k", "other")
        # The look at the start finds nothing.
        await until(lambda: store.looks > 0)
        async with AsyncSession(engine) as session:
            await store.fire_in(
                session, NewFire(key="k", value_json="0", origin=own_origin(purgatory)), list
            )
            await session.commit()
        await console.execute(text("SELECT 1 FROM purgatory_outbox FOR UPDATE"))
        await fire_all(purgatory, engine, ("k", 1), ("other", 7))
        assert (await purgatory.park("other", cursor=since, timeout=60)).value == 7
        tries = len(store.taken)
        await asyncio.sleep(0.5)
        assert len(store.taken) - tries < 30
        assert fired(purgatory, "k", since) == []
        await console.rollback()
        await until(lambda: fired(purgatory, "k", since) == [0, 1])


def own_origin(purgatory: Purgatory) -> str:
    """Return the name under which a purgatory stores its fires."""
    relay = purgatory.jobs._relay
    assert relay is not None
    return relay.origin


async def test_fires_with_many_jobs_take_several_transactions(
    purgatory: Purgatory, store: CountingStore, engine: AsyncEngine
) -> None:
    """Each of bounded size; every job that ended is told, and the fires stay in order."""
    ended: list[str] = []
    purgatory.jobs._on_end = lambda job: ended.append(job.id)
    since = purgatory.cursor("k", "l")
    specs = [
        purgatory.jobs.spec("note", delay=600, keys=[key], on_fire="cancel")
        for key in ("k", "l", "l", "l")
        for _ in range(8)
    ]
    await purgatory.jobs.add(specs)
    await fire_all(purgatory, engine, ("k", 0), ("l", 1), ("k", 2), ("l", 3))
    await until(lambda: fired(purgatory, "l", since) == [1, 3])
    assert fired(purgatory, "k", since) == [0, 2]
    assert [sum(each.jobs.count for each in some.taken) for some in store.taken] == [10, 10, 10, 2]
    await until(lambda: sorted(ended) == sorted(spec.id for spec in specs))
