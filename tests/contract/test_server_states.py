"""Servers that load, refuse, hang or are not there, and settings that no waiting corrects."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from purgatory import Purgatory
from purgatory.errors import OwnershipUnavailableError, SignalsUnavailableError
from purgatory.group_commit import CLOSE_S, RoundTripTimeout
from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs import JobContext, StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.stores.protocol import JobStore
from purgatory.ownership import Lease, Ownership
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.redis_server.client import connected
from purgatory.signals.redis import RedisSignals
from purgatory.testing import AutojumpEventLoop
from tests.cases import cases
from tests.contract.postgresql_server import PostgresqlServer
from tests.patience import GENEROUS_S, PATIENCE_S, until
from tests.valkey_server import ValkeyServer


@pytest.mark.anyio
async def test_a_start_while_the_server_loads(
    lone_redis_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it has no append-only file, which is neither refused nor warned of."""
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        with lone_redis_server.loading():
            signals = RedisSignals(lone_redis_server.url, ack="aof", timeout=1)
            shared = await stack.enter_async_context(Purgatory("s", signals=signals))
            store = RedisJobStore(lone_redis_server.url, fsync=True)
            delayed = await stack.enter_async_context(Purgatory("j", jobs=store))
            delayed.handled_elsewhere(["h"])
            owning = Ownership(RedisLeaseStore(lone_redis_server.url), "http://a", timeout=1)
            await stack.enter_async_context(owning)
            with pytest.raises(SignalsUnavailableError):
                await shared.fire("k")
            with pytest.raises(StoreUnavailableError):
                await delayed.defer("h", delay=60)
            with pytest.raises(OwnershipUnavailableError):
                await owning.acquire("n")
        await until(lambda: not shared.missing + delayed.missing)
        assert (await shared.fire("k")).seq == 1
        assert (await delayed.defer("h", delay=60)).id
        assert isinstance(await owning.acquire("n"), Lease)
    assert "append" not in caplog.text


@pytest.mark.parametrize(
    ("setting", "refusing", "code"),
    [("maxmemory", 1, "OOM"), ("min-replicas-to-write", 1, "NOREPLICAS")],
    ids=["full", "without-replicas"],
)
async def test_a_server_that_refuses_writes_is_missing_until_it_takes_them(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture, setting: str, refusing: int, code: str
) -> None:
    """A worker that can fire nothing is not ready; its waits stay."""
    caplog.set_level(logging.INFO, "purgatory.signals")
    signals = RedisSignals(server.url, shards=2, timeout=20)
    async with Purgatory("w", signals=signals) as here:
        await here.fire("key", 1)
        waiting = asyncio.create_task(here.park("key", timeout=60))
        assert here.missing == []
        with server.client() as client:
            client.config_set(setting, refusing)
            await until(lambda: len(here.missing) == 1)
            assert here.missing == [f"signals: the server of the signals refuses writes: {code}"]
            with pytest.raises(SignalsUnavailableError, match=code) as caught:
                await here.fire("key", 2)
            # For clients: it is not out of reach.
            assert "refuses writes now" in caught.value.summary
            # It follows all the same.
            await signals.read_to_end(["key"])
            client.config_set(setting, 0)
        await until(lambda: not here.missing)
        await here.fire("key", 3)
        assert (await waiting).value == 3
    said = [_action(each) for each in caplog.records if each.name == "purgatory.signals.redis"]
    # Once for each log, of those that were read meanwhile.
    assert 1 <= said.count("signals-refused") == said.count("signals-accepted") <= 2
    assert "signals-away" not in said


@pytest.mark.parametrize(
    ("rights", "reason"),
    [("-publish", "may not publish"), ("resetchannels &purgatory:nothing", "")],
    ids=["no-publish", "no-channels"],
)
async def test_a_user_that_may_not_publish_fires(
    server: ValkeyServer, rights: str, reason: str
) -> None:
    """What is written counts, and is written once; it is late, and readiness says why."""
    with server.client() as client:
        client.acl_setuser("worker", enabled=True, nopass=True)
        client.execute_command("ACL", "SETUSER", "worker", "allkeys", "allcommands", "allchannels")
        url = server.url.replace("unix://", "unix://worker:any@")
        async with (
            Purgatory("w", signals=RedisSignals(url, timeout=20)) as here,
            Purgatory("v", signals=RedisSignals(server.url, timeout=20)) as there,
        ):
            client.execute_command("ACL", "SETUSER", "worker", *rights.split())
            fired = [await here.fire("key", value) for value in range(3)]
            assert [result.seq for result in fired] == [1, 2, 3]
            await until(lambda: there.cursor("key") == fired[-1].cursor)
            await until(lambda: any(reason in each for each in here.missing))
            client.execute_command("ACL", "SETUSER", "worker", "+publish", "allchannels")
            await until(lambda: not here.missing)


def _action(record: logging.LogRecord) -> Any:
    return getattr(record, "action", None)


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


@pytest.mark.anyio
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


@pytest.mark.anyio
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
        server.close()


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_handler_that_runs_has_its_time(tmp_path: Path) -> None:
    """Its grace is not cut by a store that hangs; then its result is left to another worker."""
    with ValkeyServer(tmp_path) as server:
        purgatory = Purgatory(jobs=RedisJobStore(server.url, timeout=TIMEOUT_S))
        running, ended = asyncio.Event(), asyncio.Event()

        @purgatory.handler("slow")
        async def slow(job: JobContext) -> None:
            running.set()
            await asyncio.sleep(2 * CLOSE_S)
            ended.set()

        await purgatory.__aenter__()
        await purgatory.defer("slow", delay=0)
        await running.wait()
        async with hanging(server):
            await purgatory.close()
        assert ended.is_set()


@pytest.mark.anyio
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


@pytest.mark.anyio
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


REDIS = "redis://127.0.0.1:1"


async def open_once(purgatory: Purgatory) -> None:
    async with purgatory:
        pass


async def own_nothing(store: RedisLeaseStore) -> None:
    async with Ownership(store, "http://10.0.0.7"):
        pass


@pytest.mark.parametrize(
    "start",
    [
        lambda: open_once(Purgatory(jobs=SqlJobStore("postgresql://u@127.0.0.1:1/d"))),
        lambda: open_once(Purgatory(jobs=RedisJobStore(REDIS, timeout=0.5))),
        lambda: open_once(Purgatory(signals=RedisSignals(REDIS, timeout=0.5))),
        lambda: own_nothing(RedisLeaseStore(REDIS, timeout=0.5)),
    ],
    ids=["SqlJobStore", "RedisJobStore", "RedisSignals", "RedisLeaseStore"],
)
async def test_a_store_that_is_away_is_an_error(
    caplog: pytest.LogCaptureFixture, start: Callable[[], Awaitable[None]]
) -> None:
    """Once, whichever store it is: the process starts, and is not ready."""
    caplog.set_level(logging.WARNING, "purgatory")
    await asyncio.wait_for(start(), 30)
    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_a_wrong_password_ends_the_start(lone_redis_server: ValkeyServer) -> None:
    """So does none, and a database that the server does not have."""
    with lone_redis_server.client() as client:
        client.config_set("requirepass", "right")
        for query, complaint in (
            ("", "refuses the login"),
            ("?password=wrong", "refuses the login"),
            ("?password=right&db=99", "has no such database"),
        ):
            with pytest.raises(StoreNotReadyError, match=complaint) as caught:
                async with Purgatory(jobs=RedisJobStore(lone_redis_server.url + query)):
                    pass
            assert "wrong" not in str(caught.value)
        client.config_set("requirepass", "")


async def test_a_database_that_is_refused_is_not_replaced(redis_server: ValkeyServer) -> None:
    """Each attempt fails: redis-py up to version 7 tries again on a connection to number 0."""
    url = redis_server.url + "?db=99"
    async with aclosing(connected(url, PATIENCE_S)) as client:
        for _ in range(2):
            with pytest.raises(RedisError):
                await client.ping()
    async with aclosing(Redis.from_url(url)) as client:
        with pytest.raises(StoreNotReadyError, match="has no such database"):
            await RedisJobStore(client).open()


async def test_a_missing_folder_ends_the_start(tmp_path: Path) -> None:
    """SQLite makes a file, and no folder."""
    with pytest.raises(StoreNotReadyError, match=r"there is no folder .*/none' .*create it"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}/none/jobs.db")):
            pass


async def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    """Its URL may be misspelt, and an empty file has no jobs."""
    with pytest.raises(StoreNotReadyError, match=r"no SQLite file .*/typo.db'.*purgatory.jobs.sql"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}/typo.db")):
            pass
    assert not os.listdir(tmp_path)


async def test_a_folder_in_place_of_a_file_ends_the_start(tmp_path: Path) -> None:
    """To try again would not help."""
    with pytest.raises(StoreNotReadyError, match="is a folder: name a SQLite file in it"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}")):
            pass
    with pytest.raises(StoreNotReadyError, match="is a folder"):
        await migrate(f"sqlite:///{tmp_path}")


@cases(
    "kind, url",
    [
        (RedisJobStore, "redis://127.0.0.1:1"),
        (SqlJobStore, "postgresql://nobody@127.0.0.1:1/none"),
    ],
)
async def test_a_server_out_of_reach_is_the_reason(kind: Callable[[str], Any], url: str) -> None:
    """Nothing was requested but to open the store, so that nothing is uncertain."""
    with pytest.raises(StoreUnavailableError, match="check the server") as caught:
        await kind(url).open()
    assert "may or may not" not in str(caught.value)
