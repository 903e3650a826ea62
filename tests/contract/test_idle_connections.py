"""Connections that the server closed while they were idle: nothing was sent, so nothing fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from purgatory import Purgatory
from purgatory.jobs import JobStore
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.ownership.lease import LeaseRecord, LeaseStep
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from tests.contract.postgresql_server import PostgresqlServer
from tests.valkey_server import ValkeyServer

CloseIdle = Callable[[], Awaitable[None]]


@pytest.fixture(params=["alone", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path, is_on_port=True)
    if request.param == "alone":
        server.start()
    else:
        server.start_as_cluster()
    yield server
    server.close()


def closing(server: ValkeyServer) -> CloseIdle:
    """Return what closes all connections to `server`, and returns once this process has seen it."""

    async def close_idle() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PING\r\n")
        assert await reader.readline() == b"+PONG\r\n"
        with server.client() as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        assert await reader.read() == b""
        writer.close()
        # What has replies to read before its end comes to that in a later turn.
        for _ in range(5):
            await asyncio.sleep(0)

    return close_idle


def client_of(server: ValkeyServer) -> Redis | RedisCluster:
    """Return a client of an application."""
    with server.client() as client:
        is_cluster = client.info()["cluster_enabled"]
    return RedisCluster.from_url(server.url) if is_cluster else Redis.from_url(server.url)


async def defer_and_fire(store: JobStore, close_idle: CloseIdle) -> None:
    purgatory = Purgatory(jobs=store)
    purgatory.handled_elsewhere(["h"])
    async with purgatory:
        await purgatory.defer("h", delay=600, keys=["k"])
        for _ in range(3):
            # Several at once open several connections.
            await asyncio.gather(*(purgatory.jobs.list() for _ in range(3)))
            await close_idle()
            await purgatory.defer("h", delay=600, keys=["k"])
            await close_idle()
            assert (await purgatory.fire("k")).jobs_pending == 0
            await close_idle()
            assert (await purgatory.jobs.list()).jobs


async def test_jobs_on_postgresql(postgresql_server: PostgresqlServer) -> None:
    """The step begins on another connection, whether or not this process has seen the end."""
    await migrate(postgresql_server.url)
    admin = await asyncpg.connect(postgresql_server.url)

    async def close_idle() -> None:
        await admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    await defer_and_fire(SqlJobStore(postgresql_server.url), close_idle)
    await admin.close()


async def test_jobs_on_redis(server: ValkeyServer) -> None:
    """By a URL, by a client of the application, and by that of a cluster."""
    await defer_and_fire(RedisJobStore(server.url), closing(server))
    async with client_of(server) as client:
        await defer_and_fire(RedisJobStore(client, "other"), closing(server))


async def test_leases(server: ValkeyServer) -> None:
    """A lease is renewed."""
    async with client_of(server) as client:
        for store in RedisLeaseStore(server.url), RedisLeaseStore(client, "other"):
            await store.open()
            lease: dict[str, Any] = {"name": "name", "token": "t", "lease_ms": 15_000}
            steps = [LeaseStep("acquire", **lease, instance="i", address="a")]
            for _ in range(3):
                [record] = await store.run(steps)
                assert isinstance(record, LeaseRecord), record
                steps = [LeaseStep("renew", **lease, epoch=record.epoch)]
                await closing(server)()
            await store.close()


async def test_signals(server: ValkeyServer) -> None:
    """A fire is written once, and other processes can be asked."""
    async with client_of(server) as client:
        here = Purgatory("here", signals=RedisSignals(server.url))
        there = Purgatory("there", signals=RedisSignals(client))
        async with here, there:
            wait = asyncio.create_task(here.park("k", timeout=60))
            for number in range(3):
                for name, purgatory in ("here", here), ("there", there):
                    await closing(server)()
                    assert (await purgatory.fire(f"{name}{number}")).seq == 1
            await closing(server)()
            await there.fire("k", "value")
            assert (await wait).value == "value"
