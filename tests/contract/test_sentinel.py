"""Servers behind Sentinel: a planned failover, and URLs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, SSLConnection

from app.job_store import make_job_store
from app.signals import make_signals
from purgatory import Purgatory
from purgatory.cli.session import store_at
from purgatory.errors import PurgatoryError, SignalsUnavailableError
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership import Ownership
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.pipeline.schedule import JobAddress
from purgatory.redis_server.client import connected
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.servers import SERVICE, SentinelServers
from tests.contract.opened_redis_stores import Heard, added, opened, spec
from tests.patience import PATIENCE_S, until


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[SentinelServers]:
    servers = SentinelServers(tmp_path, random.Random(1))
    try:
        await servers.start()
        yield servers
    finally:
        await servers.close()


async def repeated(call: Callable[[], Any]) -> Any:
    """Return the result of the first call that is acknowledged."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            with contextlib.suppress(PurgatoryError):
                return await call()
            await asyncio.sleep(0.05)


async def test_everything_moves_at_a_planned_failover(
    servers: SentinelServers, caplog: pytest.LogCaptureFixture
) -> None:
    """The old primary learns of it seconds later; until then, it acknowledges what is lost."""
    async with AsyncExitStack() as stack:
        purgatories = [
            await stack.enter_async_context(
                Purgatory(signals=RedisSignals(servers.url, timeout=20))
            )
            for _ in range(2)
        ]
        here, there = purgatories
        stores = [await stack.enter_async_context(opened(servers.url)) for _ in range(2)]
        ownership = await stack.enter_async_context(
            Ownership(RedisLeaseStore(servers.url, timeout=20), "http://here")
        )
        await here.fire("key", 0)
        await ownership.acquire("name")
        said = [each.message for each in caplog.records if "min-replicas-to-write" in each.message]
        assert any("loses all signals" in each for each in said)
        assert any("set min-replicas-to-write to 1" in each for each in await stores[0].check())
        old = servers.primary
        new = await servers.begin_fail_over()
        with old.client() as client:
            # It is a primary still, which acknowledges what it is sent.
            await until(lambda: not client.pubsub_channels("{purgatory:*"))
            assert client.info("replication")["role"] == "master"
        cursor = (await repeated(lambda: here.fire("key", 1))).cursor
        for value in range(2, 20):
            await repeated(lambda value=value: there.fire("key", value))  # type: ignore[misc]
        async with Purgatory(signals=RedisSignals(servers.url)) as later:
            outcome = await later.park("key", timeout=0, cursor=cursor)
            assert outcome.value == 2
        assert (await here.park("key", timeout=PATIENCE_S, cursor=cursor)).value == 2
        waits = [asyncio.create_task(each.park("asked", timeout=300)) for each in purgatories]
        await until(lambda: all(each.waiting("asked") for each in purgatories))
        for each in purgatories:
            assert await repeated(lambda each=each: each.waiting_everywhere("asked")) == 2  # type: ignore[misc]
        await here.fire("asked", 1)
        assert [(await wait).value for wait in waits] == [1, 1]
        heard = Heard()
        stores[1].subscribe(heard)
        await until(lambda: stores[1].hears_others)
        await repeated(lambda: added(stores[0], spec(1)))
        await heard.is_due.wait()
        await repeated(lambda: ownership.acquire("another"))
        with new.client() as client:
            assert client.info("replication")["role"] == "master"
            kinds = {key.partition(b":")[2][:5] for key in client.scan_iter("*purgatory:*")}
        assert kinds == {b"signa", b"jobs:", b"lease"}


async def test_a_service_that_no_sentinel_knows(servers: SentinelServers) -> None:
    """What cannot be reached says whom it has asked."""
    url = servers.url.replace(SERVICE, "mistyped")
    with pytest.raises(StoreUnavailableError, match="no Sentinel knows a primary of 'mistyped'"):
        await RedisJobStore(url).open()
    async with Purgatory(signals=RedisSignals(url, timeout=0.5)) as purgatory:
        with pytest.raises(SignalsUnavailableError, match="no Sentinel knows a primary"):
            await purgatory.fire("key")


async def test_what_a_url_gives_to_servers_and_sentinels() -> None:
    """The user is that of the servers; TLS and timeouts are those of both."""
    url = (
        "rediss+sentinel://u:p%40@h1:1,[::1]:2,h3/my%20one?db=2&sentinel_password=x&ssl_ca_certs=f"
    )
    client = connected(url, 1.5)
    assert isinstance(client, Redis)
    pool: Any = client.connection_pool
    assert issubclass(pool.connection_class, SSLConnection)
    assert pool.service_name == "my one"
    expected = {"username": "u", "password": "p@", "db": 2, "ssl_ca_certs": "f"}
    assert expected.items() <= pool.connection_kwargs.items()
    asked = [each.connection_pool for each in pool.sentinel_manager.sentinels]
    hosts = [(each.connection_kwargs["host"], each.connection_kwargs["port"]) for each in asked]
    assert hosts == [("h1", 1), ("::1", 2), ("h3", 26_379)]
    for each in asked:
        assert issubclass(each.connection_class, SSLConnection)
        expected = {"username": None, "password": "x", "socket_timeout": 1.5, "ssl_ca_certs": "f"}
        assert expected.items() <= each.connection_kwargs.items()
        assert each.connection_kwargs.get("db", 0) == 0
    await client.aclose()


@pytest.mark.parametrize(
    "make",
    [
        RedisSignals,
        RedisJobStore,
        RedisLeaseStore,
        pytest.param(lambda url: make_signals(url, 1, "memory"), id="PURGATORY_SIGNALS"),
        pytest.param(lambda url: make_job_store(url, Path()), id="PURGATORY_JOBS_URL"),
        pytest.param(store_at, id="--store"),
        pytest.param(lambda url: JobAddress(url=url).store(), id="JobAddress"),
    ],
)
@pytest.mark.parametrize("scheme", ["redis+sentinel", "rediss+sentinel"])
def test_a_url_that_cannot_work_is_refused(make: Callable[[str], Any], scheme: str) -> None:
    """Without its password, wherever URLs are taken."""
    make(f"{scheme}://user:secret@h1:26379,h2:26379/service")
    make(f"{scheme.replace('sentinel', 'cluster')}://h1:7000")
    for rest, complaint in {
        "user:secret@h1:26379,h2:26379": "has no name of a service",
        "user:secret@h1:26379/": "has no name of a service",
        "user:secret@h1/service/0": "has no name of a service",
        "user:secret@/service": "has a Sentinel without a host",
        "user:secret@h1,,h2/service": "has a Sentinel without a host",
        "user:secret@h1:port/service": "is not a Redis URL",
        "user:secret@h1/service?db=one": "is not a Redis URL",
        "user:se/cret@h1/service": "is not a Redis URL",
        "user:secret@h1/service?decode_responses=1": "has decode_responses",
    }.items():
        with pytest.raises(ValueError, match=complaint) as caught:
            make(f"{scheme}://{rest}")
        assert "cret" not in str(caught.value)


async def test_a_primary_that_dies_is_left_once(
    servers: SentinelServers, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that found the new one by themselves stay, and the log says it once."""
    async with Purgatory(signals=RedisSignals(servers.url, shards=3)) as purgatory:
        await purgatory.fire("key")
        await servers.kill()
        await repeated(lambda: purgatory.fire("key"))
        assert not purgatory.missing
    said = [each for each in caplog.records if "do not arrive" in each.message]
    assert len(said) == 1
