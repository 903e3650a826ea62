"""Servers that moved: behind an address, in a cluster, and behind Sentinel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, SSLConnection
from redis.asyncio.connection import AbstractConnection

from app.job_store import make_job_store
from app.signals import make_signals
from purgatory import Purgatory
from purgatory.cli.session import store_at
from purgatory.errors import (
    CursorExpiredError,
    OwnershipUnavailableError,
    PurgatoryError,
    SignalsUnavailableError,
)
from purgatory.job_errors import StoreReadOnlyError
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership import Ownership
from purgatory.ownership.lease import LeaseRecord, LeaseStep
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.pipeline.schedule import JobAddress
from purgatory.redis_server.client import connected
from purgatory.redis_server.script import lost_connection
from purgatory.redis_server.server import RedisServer
from purgatory.redis_server.subscription import Subscription, publish
from purgatory.retry_policy import RetryPolicy
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.proxy import Proxy
from tests.chaos.signals.servers import SERVICE, ClusterServers, SentinelServers
from tests.contract.opened_redis_stores import Heard, added, opened, spec
from tests.patience import PATIENCE_S, until
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer

TIMEOUT_S = 20.0


@asynccontextmanager
async def opened_all(url: str) -> AsyncIterator[tuple[list[Purgatory], list[RedisSteps]]]:
    """Open three purgatories that share signals, and two job stores."""
    async with AsyncExitStack() as stack:
        signals = [RedisSignals(url, timeout=TIMEOUT_S) for _ in range(3)]
        yield (
            [await stack.enter_async_context(Purgatory(signals=each)) for each in signals],
            [await stack.enter_async_context(opened(url)) for _ in range(2)],
        )


async def each_knows_all(purgatories: Sequence[Purgatory], key: str) -> None:
    """Return once each process, with a wait of its own, counts the waits of all of them."""
    waits = [asyncio.create_task(each.park(key, timeout=300)) for each in purgatories]
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                try:
                    counts = [await each.waiting_everywhere(key) for each in purgatories]
                except SignalsUnavailableError:
                    # Once: the connection led to the replica.
                    continue
                if counts == [len(purgatories)] * len(purgatories):
                    return
                await asyncio.sleep(0.1)
    finally:
        for wait in waits:
            wait.cancel()


async def each_hears_others(stores: Sequence[RedisSteps]) -> None:
    """Return once each store object hears of jobs that the other adds."""
    for here, there in (stores, reversed(stores)):
        heard = Heard()
        end = there.subscribe(heard)
        async with asyncio.timeout(2 * PATIENCE_S):
            while not heard.is_due.is_set():
                # Once, the connection leads to the replica.
                with contextlib.suppress(StoreReadOnlyError):
                    await added(here, spec(random.random()))
                await asyncio.sleep(0.1)
        end()


async def is_leased(leases: RedisLeaseStore) -> bool:
    """Return True iff a name could be leased."""
    step = LeaseStep("acquire", name="name", token="t", lease_ms=15_000, instance="i", address="a")
    (result,) = await leases.run([step])
    return isinstance(result, LeaseRecord)


async def test_questions_and_jobs_follow_a_graceful_failover(tmp_path: Path) -> None:
    """In a cluster, where the old primary stays up as a replica, and passes messages on."""
    servers = ClusterServers(tmp_path, random.Random(1))
    try:
        await servers.start()
        async with opened_all(servers.url) as (purgatories, stores):
            await each_knows_all(purgatories, "before")
            await servers.fail_over("{purgatory:signals:0}")
            await servers.fail_over("{purgatory:jobs:0}")
            await each_knows_all(purgatories, "after")
            await each_hears_others(stores)
    finally:
        await servers.close()


async def test_all_follow_an_address_that_leads_to_a_promoted_replica(tmp_path: Path) -> None:
    """The old primary keeps the connections open, and is its replica."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    with (
        ValkeyServer(folders[0], is_on_port=True) as old,
        ValkeyServer(folders[1], is_on_port=True) as new,
        old.client() as old_client,
        new.client() as new_client,
    ):
        new_client.replicaof("127.0.0.1", old.port)
        await until(lambda: new_client.info("replication")["master_link_status"] == "up")
        async with (
            Proxy(old.port) as proxy,
            opened_all(f"redis://127.0.0.1:{proxy.port}") as (purgatories, stores),
        ):
            await each_knows_all(purgatories, "before")
            leases = RedisLeaseStore(f"redis://127.0.0.1:{proxy.port}")
            await leases.open()
            assert await is_leased(leases)
            new_client.replicaof("NO", "ONE")
            proxy.target = new.port
            old_client.replicaof("127.0.0.1", new.port)
            await each_knows_all(purgatories, "after")
            await each_hears_others(stores)
            # Once: the connection leads to the replica.
            assert [await is_leased(leases) for _ in range(3)] == [False, True, True]
            await leases.close()
            # Nobody is left there.
            await until(lambda: not old_client.pubsub_channels("{purgatory:*"))


async def test_a_message_that_does_not_come_back_is_a_lost_connection(tmp_path: Path) -> None:
    """The server of the subscription is up, and another one has the commands."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with (
        ValkeyServer(tmp_path / "old", is_on_port=True) as old,
        ValkeyServer(tmp_path / "new", is_on_port=True) as new,
    ):
        async with Proxy(old.port) as proxy:
            server = RedisServer(f"redis://127.0.0.1:{proxy.port}", "jobs", "x", TIMEOUT_S)
            server.open()
            lost: list[Exception] = []
            heard = asyncio.Event()

            async def note(channel: str, data: bytes) -> None:
                assert (channel, data) == ("{x}:told", b"news")
                heard.set()

            subscription = Subscription(
                server,
                "{x}:",
                ["{x}:told"],
                on_message=note,
                on_lost=lost.append,
                logger=logging.getLogger(__name__),
            )
            subscription.start()
            await until(lambda: subscription.is_subscribed)
            proxy.target = new.port
            # Only the connections for commands, as after a timeout of the server.
            await server.drop_connections()
            await until(lambda: bool(lost) and subscription.is_subscribed)
            assert "another server has the messages" in str(lost[0])
            assert await publish(server, "{x}:", "{x}:told", "news") == 1
            await heard.wait()
            await subscription.stop()
            await server.close()


async def test_short_pauses_follow_each_loss_of_what_was_subscribed(
    redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: only attempts that fail make the next pause longer."""
    attempts: list[int] = []
    delay_s = RetryPolicy.delay_s

    def noted(self: RetryPolicy, attempt: int) -> float:
        attempts.append(attempt)
        return delay_s(self, attempt)

    monkeypatch.setattr(RetryPolicy, "delay_s", noted)
    server = RedisServer(redis_server.url, "jobs", "x", TIMEOUT_S)
    server.open()
    connections: list[Any] = []

    async def nothing(channel: str, data: bytes) -> None:
        """Nothing is published."""

    subscription = Subscription(
        server,
        "{y}:",
        [],
        on_message=nothing,
        on_connected=connections.append,
        logger=logging.getLogger(__name__),
    )
    subscription.start()
    for number in range(1, 10):
        await until(lambda: subscription.is_subscribed and len(connections) == number)  # noqa: B023 - awaited here
        connections[-1]._writer.transport.abort()
        await until(lambda: len(attempts) == number)  # noqa: B023 - awaited here
    await subscription.stop()
    await server.close()
    assert attempts == [1] * 9


async def test_a_connection_that_is_closed_while_it_is_used_is_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster whose node restarts, another task closes it: redis-py raises AttributeError."""
    send: Any = AbstractConnection._send_packed_command

    async def send_late(self: Any, command: Any) -> None:
        await self.disconnect(nowait=True)
        await send(self, command)

    with closing(ValkeyServer(tmp_path, is_on_port=True).start_as_cluster()) as server:
        url = server.url.replace("redis", "redis+cluster", 1)
        leases, signals = RedisLeaseStore(url), RedisSignals(url, timeout=TIMEOUT_S)
        async with Purgatory(signals=signals) as purgatory, opened(url) as jobs:
            await leases.open()
            with monkeypatch.context() as patch:
                patch.setattr(AbstractConnection, "_send_packed_command", send_late)
                with pytest.raises(SignalsUnavailableError, match="may or may not be in the log"):
                    await purgatory.fire("key", 2)
                with pytest.raises(StoreUnavailableError, match="may or may not be done"):
                    await added(jobs, spec(2))
                (result,) = await leases.run([LeaseStep("read", name="name")])
            assert isinstance(result, OwnershipUnavailableError)
            assert "may or may not be done" in str(result)
            await leases.close()


async def test_a_fault_of_our_own_is_no_lost_connection() -> None:
    """Only what redis-py, or the event loop below it, raises."""
    with pytest.raises(AttributeError) as caught:
        getattr(None, "fire")  # noqa: B009 - the fault
    assert lost_connection(caught.value) is None


async def test_a_fire_that_the_old_primary_takes_after_the_first_report(tmp_path: Path) -> None:
    """Its loss expires the cursors that were given out after that report, too."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with (
        ValkeyServer(folders[0], is_on_port=True) as old,
        ValkeyServer(folders[1], is_on_port=True) as new,
        new.client() as client,
    ):
        client.replicaof("127.0.0.1", old.port)
        await until(lambda: client.info("replication")["master_link_status"] == "up")
        async with (
            Proxy(old.port) as here_proxy,
            Proxy(old.port) as there_proxy,
            _at(here_proxy) as here,
            _at(there_proxy) as there,
        ):
            await here.fire("key", 1)
            await until(lambda: client.exists("{purgatory:signals:0}:log") == 1)
            client.replicaof("NO", "ONE")
            lost = (await here.fire("key", 2)).cursor
            here_proxy.target = new.port
            here_proxy.cut()
            await _expired(here, lost)
            cursor = (await here.fire("key", 3)).cursor
            await there.fire("key", 4)
            there_proxy.target = new.port
            there_proxy.cut()
            for each in (here, there):
                await _expired(each, cursor)
            # Both know of all that was lost by now: nothing more expires.
            cursor = (await there.fire("key", 5)).cursor
            await here.fire("key", 6)
            for each in (here, there):
                outcome = await each.park("key", timeout=PATIENCE_S, cursor=cursor)
                assert outcome.value == 6


def _at(proxy: Proxy) -> Purgatory:
    return Purgatory(signals=RedisSignals(f"redis://127.0.0.1:{proxy.port}", timeout=20))


async def _expired(purgatory: Purgatory, cursor: str) -> None:
    """Return once a wait on the key with this cursor says that signals may be missing."""
    while True:
        try:
            outcome = await purgatory.park("key", timeout=PATIENCE_S, cursor=cursor)
            raise AssertionError(outcome)
        except CursorExpiredError:
            return
        except SignalsUnavailableError:
            continue


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


async def test_a_loss_that_some_logs_notice_late_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the others are back by then. Once all have been, the next loss is another one."""
    # Nothing else tells that a connection which was not lost yet is good.
    monkeypatch.setattr("purgatory.redis_server.subscription.BEAT_S", 3_600)
    with ValkeyServer(tmp_path) as server, server.client() as client:

        def connections() -> set[str]:
            return {each["id"] for each in client.client_list(_type="pubsub")}

        async with Purgatory(signals=RedisSignals(server.url, shards=3)) as purgatory:

            async def lose(cut: set[str]) -> None:
                for each in cut:
                    client.client_kill_filter(_id=each)
                await until(lambda: len(connections() - cut) == 4 and not purgatory.missing)

            await until(lambda: len(connections()) == 4)
            for each in connections():
                await lose({each})
            await lose(connections())
    assert len([each for each in caplog.records if "do not arrive" in each.message]) == 2
