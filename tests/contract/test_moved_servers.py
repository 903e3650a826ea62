"""Connections that stay up to a server that is no longer the one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from purgatory import Purgatory
from purgatory.errors import OwnershipUnavailableError, SignalsUnavailableError
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.model import StoreReadOnlyError
from purgatory.ownership.lease import Acquire, LeaseRecord, Read
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.redis_server.script import lost_connection
from purgatory.redis_server.server import RedisServer
from purgatory.redis_server.subscription import Subscription, publish
from purgatory.retry_policy import RetryPolicy
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.proxy import Proxy
from tests.chaos.signals.servers import ClusterServers
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
    step = Acquire(name="name", token="t", lease_ms=15_000, instance="i", address="a")
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
                (result,) = await leases.run([Read(name="name")])
            assert isinstance(result, OwnershipUnavailableError)
            assert "may or may not be done" in str(result)
            await leases.close()


async def test_a_fault_of_our_own_is_no_lost_connection() -> None:
    """Only what redis-py, or the event loop below it, raises."""
    with pytest.raises(AttributeError) as caught:
        getattr(None, "fire")  # noqa: B009 - the fault
    assert lost_connection(caught.value) is None
