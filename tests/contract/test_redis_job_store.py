"""What the store of jobs in Redis promises beyond the contract."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import ConnectionPool
from redis.exceptions import TimeoutError as RedisTimeoutError

from purgatory.job_errors import StoreFullError, StoreNotReadyError, StoreReadOnlyError
from purgatory.jobs import Job, JobState, StoreUnavailableError
from purgatory.jobs.model.job import HandlerState, JobCounts, JobFilter
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Finish, Fire, Pause, Resume
from purgatory.jobs.redis.changes import ChangeSubscription
from purgatory.redis_server.server import RedisServer
from tests.contract.opened_redis_stores import LEASE_MS, Heard, added, claimed, opened, spec
from tests.patience import PATIENCE_S
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer


@asynccontextmanager
async def opened_server(url: str) -> AsyncIterator[RedisServer]:
    """Open the client of a server."""
    server = RedisServer(url, "jobs", "x", 60)
    server.open()
    yield server
    await server.close()


async def test_what_was_acknowledged_survives_the_server(lone_redis_server: ValkeyServer) -> None:
    """It is killed while callers wait; those who got no answer ask again, and nothing is twice."""
    server = lone_redis_server
    specs = [spec(number, dedupe_key=f"d{number}") for number in range(3_000)]
    acknowledged: list[Job] = []
    is_under_way = asyncio.Event()

    async def caller(store: RedisSteps, part: list[JobSpec]) -> None:
        for one in part:
            acknowledged.extend(await added(store, one))
            if len(acknowledged) > 200:
                is_under_way.set()

    async with opened(server.url) as store:
        callers = [asyncio.create_task(caller(store, specs[at::32])) for at in range(32)]
        async with asyncio.timeout(PATIENCE_S):
            await is_under_way.wait()
        server.kill()
        # Each is told: nobody is forgotten with the round trip that was under way.
        async with asyncio.timeout(PATIENCE_S):
            ends = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(end, StoreUnavailableError) for end in ends)
        await asyncio.to_thread(server.start)
        found = await store.get([job.id for job in acknowledged])
        assert found == acknowledged
        await added(store, *specs)
        assert await store.counts() == JobCounts(waiting=len(specs))


async def test_an_outcome_survives_the_server(lone_redis_server: ValkeyServer) -> None:
    """And the claim of whoever was running a job meanwhile."""
    server = lone_redis_server
    async with opened(server.url) as store:
        await added(store, spec(1), spec(2))
        first, second = await claimed(store)
        await store.start([first.claim, second.claim], lease_ms=LEASE_MS)
        assert await store.finish([Finish(first.claim, JobState.DONE)]) == [True]
        server.kill()
        with pytest.raises(StoreUnavailableError, match="can be made again"):
            await store.finish([Finish(second.claim, JobState.DONE)])
        await asyncio.to_thread(server.start)
        results = [Finish(job.claim, JobState.DONE) for job in (first, second)]
        assert await store.finish(results) == [True, True]
        assert await store.counts() == JobCounts(done=2)


async def test_an_acknowledgement_can_wait_for_the_disk(lone_redis_server: ValkeyServer) -> None:
    """Also where the server writes to it once a second only."""
    server = lone_redis_server
    with server.client() as client:
        client.config_set("appendfsync", "everysec")
    async with opened(server.url, fsync=True) as store:
        assert await store.check() == []
        (job,) = await added(store, spec())
        with server.client() as client:
            assert client.execute_command("WAITAOF", 1, 0, 1)[0] == 1
            client.script_flush()
        assert await store.get([job.id]) == [job]
        with server.client() as client:
            client.config_set("appendfsync", "no")
        assert "appendfsync is no" in (await store.check())[0]


async def test_others_are_heard_again_after_a_crash(lone_redis_server: ValkeyServer) -> None:
    """What they added while nobody heard is found at once, too."""
    server = lone_redis_server
    heard = Heard()
    async with opened(server.url) as here:
        assert here.hears_others
        server.kill()
        await asyncio.to_thread(server.start)
        async with opened(server.url) as there:
            here.subscribe(heard)
            await added(there, spec())
            async with asyncio.timeout(PATIENCE_S):
                await heard.is_due.wait()


async def test_what_others_change_is_heard(redis_server: ValkeyServer) -> None:
    """So that whoever waits for a job hears of its end at once, wherever it ran."""
    heard = Heard()
    async with (
        opened(redis_server.url, prefix="others") as here,
        opened(redis_server.url, prefix="others") as there,
    ):
        (job,) = await added(there, spec())
        (held,) = await claimed(there)
        await there.start([held.claim], lease_ms=LEASE_MS)
        here.subscribe(heard)
        await there.finish([Finish(held.claim, JobState.DONE)])
        async with asyncio.timeout(PATIENCE_S):
            await heard.is_changed.wait()
        assert heard.changed[-1] == job.id


async def test_a_fault_while_hearing_is_not_the_end_of_it(
    redis_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and others are heard again."""
    faults = [ValueError("what is that?")]
    is_looking = asyncio.Event()

    async def look() -> None:
        if faults:
            raise faults.pop()
        is_looking.set()

    async with opened_server(redis_server.url) as server:
        subscription = ChangeSubscription(server, ["faults"], on_message=print, on_subscribed=look)
        await subscription.start(PATIENCE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await is_looking.wait()
            assert subscription.is_subscribed
            assert "what is that?" in caplog.text
        finally:
            await subscription.stop()


async def test_an_outage_is_logged_once(
    redis_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it subscribes anew until it is over; and that it is."""
    caplog.set_level("INFO", "purgatory.jobs.redis")
    refusals = [ConnectionError("refused") for _ in range(4)]
    is_looking = asyncio.Event()

    async def look() -> None:
        if refusals:
            raise refusals.pop()
        is_looking.set()

    async with opened_server(redis_server.url) as server:
        subscription = ChangeSubscription(server, ["outage"], on_message=print, on_subscribed=look)
        await subscription.start(PATIENCE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await is_looking.wait()
        finally:
            await subscription.stop()
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions == ["jobs.redis.subscribe", "jobs.redis.subscribed"]


# Servers that are not fit


async def test_a_user_needs_only_what_the_documentation_names(
    lone_redis_server: ValkeyServer,
) -> None:
    """Hashes, lists and sorted sets on the store's keys; scripts; its channels."""
    rights = (
        "resetkeys ~{purgatory:* resetchannels &{purgatory:* -@all +@hash +@list +@sortedset"
        " +eval +evalsha +time +info +publish +subscribe"
    )
    with lone_redis_server.client() as client:
        client.acl_setuser("worker", enabled=True, nopass=True)
        client.execute_command("ACL", "SETUSER", "worker", *rights.split())
    url = lone_redis_server.url.replace("unix://", "unix://worker:any@")
    async with opened(url) as store:
        await added(store, spec(delay=60, keys=["k"], dedupe_key="d", concurrency_key="c"))
        await store.run([Pause(None), Fire("k", "null"), Resume(None, limit=100)])
        [job] = await claimed(store)
        await store.start([job.claim], lease_ms=LEASE_MS)
        await store.run([Finish(job.claim, JobState.DONE)])
        assert await store.counts() == JobCounts(done=1)
        page = await store.query(JobFilter(state=JobState.DONE), limit=1)
        assert [each.id for each in page.jobs] == [job.id]


async def test_a_server_that_evicts_is_refused(lone_redis_server: ValkeyServer) -> None:
    """Jobs would be lost in silence."""
    with lone_redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreNotReadyError, match=r"allkeys-lru.*set it to noeviction"):
        await RedisSteps(lone_redis_server.url).open()


async def test_a_server_that_begins_to_evict_is_told_of(lone_redis_server: ValkeyServer) -> None:
    """By `check`, at any time."""
    async with opened(lone_redis_server.url) as store:
        with lone_redis_server.client() as client:
            client.config_set("maxmemory-policy", "volatile-ttl")
        assert any("volatile-ttl" in warning for warning in await store.check())


async def test_a_server_without_persistence_is_told_of(lone_redis_server: ValkeyServer) -> None:
    """It is a warning, as replicas may be all that somebody asks for; with fsync it cannot be."""
    async with opened(lone_redis_server.url) as store:
        assert await store.check() == []
        with lone_redis_server.client() as client:
            client.config_set("appendfsync", "everysec")
            assert "loses the last second" in (await store.check())[0]
            client.config_set("appendonly", "no")
        (warning,) = await store.check()
        assert "appendonly is no" in warning
    with pytest.raises(StoreNotReadyError, match="appendonly is no: set it to yes"):
        await RedisSteps(lone_redis_server.url, fsync=True).open()


async def test_memory_that_runs_out_is_told_of(lone_redis_server: ValkeyServer) -> None:
    """Before it does."""
    async with opened(lone_redis_server.url) as store:
        with lone_redis_server.client() as client:
            used = client.info("memory")["used_memory"]
            client.config_set("maxmemory", int(used * 1.05))
            assert any("when it is full" in warning for warning in await store.check())


async def test_a_full_server_refuses_jobs_and_lets_those_it_has_end(
    lone_redis_server: ValkeyServer,
) -> None:
    """Nothing is acknowledged that is not stored; what was stored is run."""
    async with opened(lone_redis_server.url) as store:
        first, second = await added(store, spec(1, keys=["k"]), spec(2, delay=60, keys=["k"]))
        with lone_redis_server.client() as client:
            client.config_set("maxmemory", 1)
        refused = [spec(number) for number in range(3)]
        for result in await store.add(refused):
            assert isinstance(result, StoreFullError) and "raise maxmemory" in str(result)
        assert await store.get([one.id for one in refused]) == [None] * 3
        (job,) = await claimed(store)
        (running,) = await store.start([job.claim], lease_ms=LEASE_MS)
        assert running is not None and running.id == first.id
        assert await store.finish([Finish(job.claim, JobState.DONE)]) == [True]
        (fired,) = await store.fire([Fire("k", "1")], limit=10)
        assert fired.run == (second.id,)
        await store.cancel(second.id)
        with lone_redis_server.client() as client:
            client.config_set("maxmemory", 0)
        await added(store, *refused)
        assert await store.counts() == JobCounts(waiting=3, done=1, cancelled=1)


async def test_a_full_server_can_be_opened(lone_redis_server: ValkeyServer) -> None:
    """Else nothing that it has would ever run."""
    async with opened(lone_redis_server.url) as store:
        await added(store, spec())
    with lone_redis_server.client() as client:
        client.config_set("maxmemory", 1)
    async with opened(lone_redis_server.url) as store:
        assert len(await claimed(store)) == 1


async def test_a_server_that_became_a_replica_takes_nothing(
    lone_redis_server: ValkeyServer,
) -> None:
    """It says so, and is refused when it is one from the start."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with opened(lone_redis_server.url) as store:
            with lone_redis_server.client() as client:
                client.replicaof("127.0.0.1", nobody.getsockname()[1])
            with pytest.raises(StoreReadOnlyError, match="connect to the primary"):
                await store.add([spec()])
        with pytest.raises(StoreNotReadyError, match="replica"):
            await RedisSteps(lone_redis_server.url).open()


async def test_an_old_primary_that_does_not_let_go_is_said_to_be_read_only(
    lone_redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose machine hangs, with TLS: what a connection's end raises is no answer."""

    async def hang(pool: ConnectionPool, inuse_connections: bool = True) -> None:
        raise RedisTimeoutError("Timed out closing connection after 10.0")

    async with opened(lone_redis_server.url) as store:
        with lone_redis_server.client() as client:
            client.replicaof("127.0.0.1", 1)
        with monkeypatch.context() as patch:
            patch.setattr(ConnectionPool, "disconnect", hang)
            with pytest.raises(StoreReadOnlyError):
                await store.add([spec()])


async def test_a_server_that_hangs_is_unavailable(lone_redis_server: ValkeyServer) -> None:
    """After the timeout; the next call has a connection that is not confused by late answers."""
    async with opened(lone_redis_server.url, timeout=1.0) as store:
        (job,) = await added(store, spec())
        with lone_redis_server.client() as client:
            client.client_pause(2_000)
            with pytest.raises(StoreUnavailableError):
                await store.cancel(job.id)
            client.client_unpause()
        cancelled = await store.cancel(job.id)
        assert await store.get([job.id]) == [cancelled]


# Records that are none


async def test_a_record_that_is_none_is_set_aside(redis_server: ValkeyServer) -> None:
    """It is kept for people, and the rest goes on."""
    prefix = "broken"
    async with opened(redis_server.url, prefix=prefix) as store:
        bad, good = await added(store, spec(1, keys=["k"]), spec(2, keys=["k"], delay=0.001))
        tag = f"{{{prefix}:jobs:0}}:"
        with redis_server.client() as client:
            client.hset(f"{tag}jobs", bad.id, b"\xff\xfe\x00")
        page = await store.query(JobFilter(key="k"), limit=10)
        assert [job.id for job in page.jobs] == [good.id]
        assert await store.get([bad.id]) == [None]
        (fired,) = await store.fire([Fire("k", "1")], limit=10)
        assert fired.run == (good.id,)
        assert await store.counts() == JobCounts(waiting=1, quarantined=1)
        # Its id is free.
        with redis_server.client() as client:
            assert client.hget(f"{tag}jobs", bad.id) is None
            (kept,) = client.lrange(f"{tag}quarantined", 0, -1)
        job_id, reason, _ = kept.split(b"\0", 2)
        assert job_id.decode() == bad.id and reason


@pytest.mark.parametrize("start", [b"\x80", b"\xff", b"\xc3"])
async def test_ids_that_are_no_text_end_no_count(redis_server: ValkeyServer, start: bytes) -> None:
    """A batch that ends with one is followed by the next, also if no record has the id."""
    prefix = f"damaged-{start.hex()}"
    async with opened(redis_server.url, prefix=prefix, limits=JobLimits(max_batch=2)) as store:
        await added(store, spec(1, delay=60), spec(2, delay=60))
        with redis_server.client() as client:
            for number in range(5):
                client.zadd(f"{{{prefix}:jobs:0}}:waiting", {start + b"%d" % number: 0})
        async with asyncio.timeout(PATIENCE_S):
            counts = await store.handler_counts()
        assert counts == {HandlerState("note", JobState.WAITING): 2}


# Round trips


def script_calls(server: ValkeyServer) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def test_callers_share_round_trips(lone_redis_server: ValkeyServer) -> None:
    """Sixty-four that come together take one; those that come meanwhile the next."""
    async with opened(lone_redis_server.url) as store:
        await added(store, spec())
        before = script_calls(lone_redis_server)
        await asyncio.gather(*(added(store, spec(number)) for number in range(64)))
        assert script_calls(lone_redis_server) - before == 1
        await asyncio.gather(
            *(added(store, spec(number)) for number in range(32)),
            *(store.fire([Fire(f"none{number}", "0")], limit=1) for number in range(32)),
        )
        assert script_calls(lone_redis_server) - before == 2


@pytest.mark.parametrize(("count", "round_trips"), [(1_000, 1), (2_500, 3)])
async def test_a_large_batch_takes_few_round_trips(
    lone_redis_server: ValkeyServer, count: int, round_trips: int
) -> None:
    """A thousand steps each, so that others get their turn."""
    async with opened(lone_redis_server.url) as store:
        # Its messages to itself are scripts, too.
        assert store._subscription is not None
        await store._subscription.stop()
        before = script_calls(lone_redis_server)
        await added(store, *(spec(number) for number in range(count)))
        assert script_calls(lone_redis_server) - before == round_trips
        assert (await store.counts()).waiting == count
