"""A user of Redis that loses single rights while its connections are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from purgatory import Limits, Purgatory
from purgatory.errors import PurgatoryError, SignalsError
from purgatory.jobs import JobState
from purgatory.jobs.model.job import JobFilter
from purgatory.jobs.model.steps import Finish, Fire, Pause, Prune, Resume
from purgatory.ownership.lease import (
    LeaseRecord,
    LeaseStep,
)
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.redis_server.server import RedisServer
from purgatory.signals.model import EntryType, Idempotency
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.entry_codec import AppendRequest
from purgatory.signals.redis.records import NameClaims, PendingFireRecords
from purgatory.signals.redis.shard_log import FireDeadlines, ShardLog
from tests.contract.opened_redis_stores import LEASE_MS, added, claimed, opened, spec
from tests.patience import until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

RIGHTS = (
    *("hset", "hget", "hmget", "hdel", "hincrby", "hscan", "hkeys"),
    *("zadd", "zrem", "zincrby", "zcard", "zscore", "zrange", "zrevrange", "zrangebyscore"),
    *("zpopmin", "zlexcount", "zrangebylex", "sadd", "srem", "smembers"),
    *("rpush", "rpop", "lpop", "lindex", "lrange", "llen", "lrem", "ltrim"),
    *("xadd", "xdel", "xlen", "xrange", "xrevrange"),
    *("set", "get", "del", "exists", "incrby", "decrby", "pexpire", "time", "info"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        with running.client() as client:
            client.acl_setuser("worker", enabled=True, nopass=True)
            client.execute_command("ACL", "SETUSER", "worker", "~*", "&*", "+@all")
        yield running


def _url(server: ValkeyServer) -> str:
    return server.url.replace("unix://", "unix://worker:any@")


def _contents(client: Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in client.scan_iter()}


async def _refused(server: ValkeyServer, operate: Callable[[], Awaitable[object]]) -> set[str]:
    """Take each right in turn; a call that is refused changes nothing, and names the right."""
    refused = set()
    with server.client() as client:
        for right in RIGHTS:
            client.execute_command("ACL", "SETUSER", "worker", f"-{right}")
            before = _contents(client)
            [error] = await asyncio.gather(operate(), return_exceptions=True)
            if isinstance(error, Exception):
                assert _contents(client) == before, f"half done without {right}"
                assert isinstance(error, PurgatoryError)
                assert f"'{right}'" in str(error)
                refused.add(right)
            client.execute_command("ACL", "SETUSER", "worker", f"+{right}")
    return refused


@pytest.mark.parametrize("max_signals", [8, 1_000], ids=["full", "roomy"])
async def test_a_fire_that_lacks_a_right_has_not_fired(
    server: ValkeyServer, max_signals: int
) -> None:
    """Plain, of an owner, in a batch, a history that ends, with a name, and the claim of one."""
    redis = RedisServer(_url(server), "signals", "x", 60)
    redis.open()
    limits = Limits(max_signals=max_signals, max_signals_per_key=4)
    log, other = (
        ShardLog(f"{{x}}:{number}:", redis, FireDeadlines(redis.timeout), shards=1, limits=limits)
        for number in range(2)
    )
    claims = NameClaims([log, other], timeout_s=60)
    names = iter(range(1_000_000))

    def plain(owner: str | None = None) -> AppendRequest:
        return AppendRequest([(EntryType.FIRED, f"k{next(names) % 5}", b"1")], owner=owner)

    def name() -> Idempotency:
        return Idempotency(owner="o", name=f"n{next(names)}", fingerprint="f")

    def named() -> AppendRequest:
        return AppendRequest([(EntryType.FIRED, "k", b"1")], owner="o", idempotency=name())

    batch = [(EntryType.FIRED, f"k{number}", b"1") for number in range(3)]
    operations: list[tuple[Callable[[], Awaitable[object]], set[str]]] = [
        (lambda: log.append(plain()), {"rpush", "xadd", "hset", "zrem"}),
        (lambda: log.append(plain("o")), {"rpush", "xadd", "hset", "zincrby", "zadd"}),
        (lambda: log.append(plain("p")), {"rpush", "xadd", "hset", "zincrby", "zadd"}),
        (lambda: log.append(AppendRequest(batch)), {"rpush", "xadd", "hset", "zadd"}),
        (lambda: log.append(AppendRequest([(EntryType.DROPPED, "k1", b"")])), {"xadd", "hset"}),
        (lambda: log.append(named()), {"rpush", "xadd", "set", "incrby"}),
        (lambda: claims.claim(1, name(), [0]), {"rpush", "set", "incrby"}),
    ]
    try:
        for operate, needed in operations:
            for _ in range(10):
                await operate()
            assert needed <= await _refused(server, operate)
    finally:
        await log.drain()
        await other.drain()
        await redis.close()


async def test_a_fire_that_lacks_a_right_costs_nobody_his_cursor(server: ValkeyServer) -> None:
    """Readiness says so until the right is back; who follows without it hears of others' fires."""
    async with (
        Purgatory("w", signals=RedisSignals(_url(server), timeout=20)) as here,
        Purgatory("v", signals=RedisSignals(server.url, timeout=20)) as there,
    ):
        cursor = there.cursor("key")
        await here.fire("key", 0)
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "worker", "-hset")
            await until(lambda: bool(here.missing))
            assert "NOPERM" in here.missing[0]
            with pytest.raises(SignalsError, match="'hset'"):
                await here.fire("key", "refused")
            fired = await there.fire("key", 1)
            await until(lambda: here.cursor("key") == fired.cursor)
            client.execute_command("ACL", "SETUSER", "worker", "+hset")
        await until(lambda: not here.missing)
        await here.fire("key", 2)
        values = []
        while (outcome := await there.park("key", timeout=1, cursor=cursor)).value != 2:
            values.append(outcome.value)
            cursor = outcome.cursor
        assert values == [0, 1]


async def test_a_pending_fire_that_lacks_a_right_is_kept_whole(server: ValkeyServer) -> None:
    """Neither half added nor half removed."""
    redis = RedisServer(_url(server), "signals", "x", 60)
    redis.open()
    records = PendingFireRecords("{x}:", redis)

    async def settle() -> None:
        await records.remove(await records.first(1))

    try:
        for _ in range(2 * len(RIGHTS)):
            await records.add(b"record")
        assert {"rpush"} <= await _refused(server, lambda: records.add(b"r"))
        assert {"lrem"} <= await _refused(server, settle)
    finally:
        await records.drain()
        await redis.close()


async def test_a_step_of_jobs_that_lacks_a_right_has_changed_nothing(
    server: ValkeyServer,
) -> None:
    """And jobs are read without the rights that only changes need."""
    async with opened(_url(server)) as store:

        async def add() -> None:
            await added(store, spec(keys=["k"], concurrency_key="c"))

        async def claim_one() -> None:
            await store.claim("w", within_ms=0, limit=1, lease_ms=LEASE_MS)

        async def fire_and_finish() -> None:
            await add()
            await store.run([Fire("k", "null")])
            for job in await claimed(store):
                await store.start([job.claim], lease_ms=LEASE_MS)
                await store.run([Finish(job.claim, JobState.DONE)])

        operations: list[Callable[[], Awaitable[object]]] = [
            *(add, claim_one, fire_and_finish),
            lambda: store.run([Pause("other")]),
            lambda: store.run([Resume("other", limit=1)]),
            lambda: store.run([Prune(2**45, keep=0, limit=1)]),
        ]
        for _ in RIGHTS:
            await fire_and_finish()
        for operate in operations:
            refused = await _refused(server, operate)
            assert {"hset", "hdel", "zadd", "zrem"} <= refused
        reads = await _refused(server, lambda: store.query(JobFilter(), limit=10))
        assert not reads & {"hset", "hdel", "zadd", "zrem"}


async def test_a_lease_that_lacks_a_right_is_as_it_was(server: ValkeyServer) -> None:
    """Neither taken, nor released, nor committed by half."""
    store = RedisLeaseStore(_url(server), timeout=60)
    await store.open()

    async def step(each: LeaseStep) -> LeaseRecord:
        (result,) = await store.run([each])
        if isinstance(result, PurgatoryError):
            raise result
        return result

    async def of_owner(make: Callable[[int], LeaseStep]) -> None:
        record = await step(LeaseStep("read", name="n"))
        await step(make(record.epoch))

    async def acquire() -> None:
        await step(
            LeaseStep(
                "acquire", name="n", token="t", instance="i", address="http://a", lease_ms=LEASE_MS
            )
        )

    async def commit() -> None:
        await acquire()
        version = (await step(LeaseStep("read", name="n"))).version + 1
        state = b"state" if version % 2 else None
        await of_owner(
            lambda epoch: LeaseStep(
                "commit",
                name="n",
                token="t",
                epoch=epoch,
                lease_ms=LEASE_MS,
                version=version,
                state=state,
            )
        )

    async def release() -> None:
        await acquire()
        await of_owner(lambda epoch: LeaseStep("release", name="n", token="t", epoch=epoch))

    try:
        for operate in (acquire, commit, release, commit):
            assert {"hset", "hdel", "pexpire"} <= await _refused(server, operate)
    finally:
        await store.close()
