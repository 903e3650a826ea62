"""A process that ends while its server hangs: it waits half a second, whatever its timeouts are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from purgatory import Purgatory
from purgatory.errors import OwnershipUnavailableError, SignalsUnavailableError
from purgatory.group_commit import CLOSE_S, RoundTripTimeout
from purgatory.jobs import Job, StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.stores.protocol import JobStore
from purgatory.ownership import Ownership
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from purgatory.testing import AutojumpEventLoop
from tests.contract.postgresql_server import PostgresqlServer
from tests.patience import GENEROUS_S, until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

# Much more than what the end of a process may take.
TIMEOUT_S = 60.0


class Suspendable(Protocol):
    def suspend(self) -> None: ...

    def resume(self) -> None: ...


@asynccontextmanager
async def hanging(server: Suspendable) -> AsyncIterator[None]:
    """Have the server hang from now on; what is opened outside is closed meanwhile."""
    server.suspend()
    try:
        async with asyncio.timeout(GENEROUS_S):
            yield
    finally:
        server.resume()


async def fails(kind: type[Exception], *under_way: asyncio.Future[Any]) -> None:
    for result in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(result, kind), result


def begun(request: Awaitable[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(request)


@pytest.mark.parametrize("shards", [1, 2])
async def test_signals(tmp_path: Path, shards: int) -> None:
    """Fires and questions fail; a wait ends as drained."""
    with ValkeyServer(tmp_path) as server:
        purgatory = Purgatory(signals=RedisSignals(server.url, timeout=TIMEOUT_S, shards=shards))
        await purgatory.__aenter__()
        await purgatory.fire("k")
        waiting = begun(purgatory.park("other", timeout=TIMEOUT_S))
        async with hanging(server):
            fires = [begun(purgatory.fire(f"k{number}")) for number in range(10)]
            asked = begun(purgatory.waiting_everywhere("k"))
            await asyncio.sleep(0)
            await purgatory.close()
            await fails(SignalsUnavailableError, *fires, asked)
            assert (await waiting).status == "drained"


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
async def test_jobs(tmp_path: Path, kind: str) -> None:
    """Requests of clients fail, also those that wait for others; and so it is if nothing runs."""
    server: Any = ValkeyServer(tmp_path).start() if kind == "redis" else PostgresqlServer()
    try:
        store: JobStore
        if kind == "redis":
            store = RedisJobStore(server.url, timeout=TIMEOUT_S)
        else:
            await migrate(server.url)
            store = SqlJobStore(server.url)
        for is_idle in (True, False):
            purgatory = Purgatory(jobs=store)
            purgatory.handled_elsewhere(["note"])
            await purgatory.__aenter__()
            job = await purgatory.defer("note", delay=TIMEOUT_S)
            async with hanging(server):
                requests: list[asyncio.Future[Any]] = []
                if not is_idle:
                    for _ in range(3):
                        requests += (
                            begun(purgatory.defer("note", delay=TIMEOUT_S)),
                            begun(purgatory.job(job.id).get()),
                            begun(purgatory.jobs.counts()),
                        )
                    await asyncio.sleep(0.1)
                await purgatory.close()
                await fails(StoreUnavailableError, *requests)
    finally:
        server.close() if kind == "redis" else server.stop()


async def test_a_store_that_is_being_opened(tmp_path: Path) -> None:
    """As of a process that is stopped soon after its start."""
    with ValkeyServer(tmp_path) as server:
        purgatory = Purgatory(jobs=RedisJobStore(server.url, timeout=TIMEOUT_S))
        async with hanging(server):
            opening = begun(purgatory.__aenter__())
            await until(lambda: purgatory.is_open)
            await asyncio.sleep(0.1)
            await purgatory.close()
            await asyncio.gather(opening, return_exceptions=True)


async def test_a_handler_that_runs_has_its_time(tmp_path: Path) -> None:
    """Its grace is not cut by a store that hangs; then its result is left to another worker."""
    with ValkeyServer(tmp_path) as server:
        purgatory = Purgatory(jobs=RedisJobStore(server.url, timeout=TIMEOUT_S))
        running, ended = asyncio.Event(), asyncio.Event()

        @purgatory.handler("slow")
        async def slow(job: Job) -> None:
            running.set()
            await asyncio.sleep(2 * CLOSE_S)
            ended.set()

        await purgatory.__aenter__()
        await purgatory.defer("slow", delay=0)
        await running.wait()
        async with hanging(server):
            await purgatory.close()
        assert ended.is_set()


async def test_ownership(tmp_path: Path) -> None:
    """Leases end by themselves; what was being acquired fails."""
    with ValkeyServer(tmp_path) as server:
        store = RedisLeaseStore(server.url, timeout=TIMEOUT_S)
        ownership = Ownership(store, "http://a", timeout=TIMEOUT_S, lease_ms=3_600_000)
        await ownership.open()
        await ownership.acquire("mine")
        async with hanging(server):
            acquiring = begun(ownership.acquire("other"))
            await asyncio.sleep(0)
            await ownership.close()
            await fails(OwnershipUnavailableError, acquiring)


def test_what_is_left_of_a_timeout() -> None:
    """Half a second for what is under way, however long it had; less for what begins later."""

    async def main() -> list[float]:
        loop, timeout = asyncio.get_running_loop(), RoundTripTimeout(TIMEOUT_S)
        begun_s, ends = loop.time(), []

        async def trip(begin_s: float, seconds: float | None = None) -> None:
            await asyncio.sleep(begin_s)
            with pytest.raises(TimeoutError):
                async with timeout.limit(seconds):
                    await asyncio.sleep(2 * TIMEOUT_S)
            ends.append(round(loop.time() - begun_s, 3))

        trips = [trip(0), trip(0, 10.1), trip(10.2), trip(11), trip(0, 5)]
        running = asyncio.gather(*trips)
        await asyncio.sleep(10)
        timeout.hurry()
        timeout.hurry()
        await running
        return sorted(ends)

    loop = AutojumpEventLoop()
    try:
        assert loop.run_until_complete(main()) == [5, 10.1, 10.5, 10.5, 11.1]
    finally:
        loop.close()
