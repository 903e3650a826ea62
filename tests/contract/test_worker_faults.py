"""Workers on real servers whose clocks differ, whose primary changes, or whose disk is full."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from purgatory import Purgatory
from purgatory.jobs import (
    Job,
    JobContext,
    JobHandle,
    JobState,
    StoreUnavailableError,
    WorkerSettings,
)
from purgatory.jobs.model import StoreOutOfSpaceError
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore
from purgatory.timer import SystemClock
from tests.chaos.signals.proxy import Proxy
from tests.contract.sql_job_stores import PostgresqlJobStores
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


class Skewed(SystemClock):
    """The clock of a host that is wrong by so much."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


async def test_hosts_whose_clocks_are_30_seconds_apart(postgresql_job_stores: Any) -> None:
    """Deadlines are PostgreSQL's: nothing is early, or late by a clock, or run twice."""
    stores: PostgresqlJobStores = postgresql_job_stores(None, None)
    await stores.make_ready()
    engines = [stores.engine(), stores.engine()]
    hosts = [
        Purgatory(jobs=SqlJobStore(engine), clock=Skewed(ahead_ms))
        for engine, ahead_ms in zip(engines, (-15_000, 15_000), strict=True)
    ]
    runs: Counter[str] = Counter()
    early: list[str] = []

    async def note(job: JobContext) -> None:
        runs[job.id] += 1
        # The machine is the server's, too.
        if SystemClock().wall_ms() < int(job.deadline.timestamp() * 1_000):
            early.append(job.id)

    for host in hosts:
        host.handler("note")(note)
    async with hosts[0], hosts[1]:
        handles = [
            await host.defer("note", delay=delay)
            for host in hosts
            for delay in (0, 0.3, 0.6, 0.9)
            for _ in range(5)
        ]
        jobs = await asyncio.gather(*(handle.wait(PATIENCE_S) for handle in handles))
    assert {job.state for job in jobs} == {JobState.DONE}
    assert (early, set(runs.values()), len(runs)) == ([], {1}, 40)
    # Far less than the clocks are apart.
    assert max(job.lateness_ms or 0 for job in jobs) < 10_000
    for engine in engines:
        await engine.dispose()
    await stores.close()


async def test_a_failover_of_redis(tmp_path: Path) -> None:
    """What was replicated runs once on the next primary, behind the same address."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first = ValkeyServer(folders[0], is_on_port=True)
    runs: Counter[str] = Counter()
    with first, ValkeyServer(folders[1]) as second, second.client() as replica:
        port = first.url.rpartition(":")[2]
        replica.execute_command("REPLICAOF", "127.0.0.1", port)
        async with Proxy(f"{_socket_folder(first)}/s") as proxy:
            store = RedisJobStore(f"redis://127.0.0.1:{proxy.port}", timeout=2)
            settings = WorkerSettings(lease_ms=2_000)
            purgatory = Purgatory(jobs=store, job_settings=settings)

            @purgatory.handler("note")
            async def note(job: JobContext) -> None:
                runs[job.id] += 1

            async with purgatory:
                handles = [
                    await purgatory.defer("note", delay=0.05 * number, dedupe_key=str(number))
                    for number in range(60)
                ]
                with first.client() as primary:
                    # As an operator does who moves the primary without losing anything.
                    primary.config_set("min-replicas-to-write", 2)
                    await _replicated(primary, replica)
                first.kill()
                replica.execute_command("REPLICAOF", "NO", "ONE")
                proxy.target = f"{_socket_folder(second)}/s"
                proxy.cut()
                jobs = await asyncio.gather(*map(ended, handles))
    assert {job.state for job in jobs} == {JobState.DONE}
    assert len(runs) == 60
    # At least once: the one that ran as the primary went may run again.
    assert sum(runs.values()) <= 70


async def ended(handle: JobHandle) -> Job:
    """Wait for the end of a job, however often the store is away."""
    while True:
        try:
            return await handle.wait(PATIENCE_S)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def _replicated(primary: Redis, replica: Redis) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while _offset(primary) != _offset(replica):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.01)


def _offset(server: Redis) -> object:
    return server.info("replication")["master_repl_offset"]


def _socket_folder(server: ValkeyServer) -> Path:
    return server._socket_folder


async def test_a_full_sqlite_disk(sqlite_template: Path, tmp_path: Path) -> None:
    """Nothing is acknowledged that is not stored; what runs meanwhile is recorded afterwards."""
    path = tmp_path / "jobs.db"
    shutil.copy(sqlite_template, path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    pages = {"max": 100_000}

    def limit(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {pages['max']}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", limit)
    purgatory = Purgatory(jobs=SqlJobStore(engine))
    may_end, has_begun = asyncio.Event(), asyncio.Event()
    runs: Counter[str] = Counter()

    @purgatory.handler("note")
    async def note(job: JobContext, payload: str) -> None:
        runs[job.id] += 1
        has_begun.set()
        await may_end.wait()

    async with purgatory:
        handles = [await purgatory.defer("note", "x", delay=0)]
        await has_begun.wait()
        pages["max"] = 1
        await engine.dispose()
        database = purgatory.jobs.store._database  # type: ignore[attr-defined] # behind the protocol
        await database._drop_writer()
        with pytest.raises(StoreOutOfSpaceError):
            await purgatory.defer("note", "x" * 60_000, delay=0)
        may_end.set()
        pages["max"] = 100_000
        await database._drop_writer()
        await engine.dispose()
        jobs = await asyncio.gather(*(handle.wait(PATIENCE_S) for handle in handles))
        assert (await purgatory.jobs.counts()).waiting == 0
    assert {job.state for job in jobs} == {JobState.DONE}
    assert runs.keys() == {handle.id for handle in handles} and set(runs.values()) == {1}
    await engine.dispose()
