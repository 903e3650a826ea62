"""Trace contexts that are stored with jobs, and travel with signals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import Limits, Purgatory
from purgatory.event_loop.parking import MAX_UNSLICED
from purgatory.jobs import Job, JobContext, JobState
from purgatory.jobs.clients import JobClient, SyncJobClient
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import OnFire
from purgatory.jobs.model.steps import Finish, GiveBack, Retry, WaitAgain
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.signals.redis import RedisSignals
from purgatory.timer import SystemClock
from purgatory.tracing import PurgatoryTracing, SpanPropagation
from tests.contract.world import NOBODY, World
from tests.kept_spans import Provider, ids
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

FIRST, SECOND = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")


async def test_every_step_leaves_it_with_the_job(world: World) -> None:
    """Through keys that count, starts, rounds and retries, in both processes."""
    spec = replace(world.spec(delay=0, keys=["a", "b"], until="all"), traceparent=FIRST)
    job = (await world.add_spec(spec)).job
    assert job.traceparent == FIRST
    for key in ("a", "b"):
        await world.fire(key)
        assert (await world.job(job.id)).traceparent == FIRST
    started = await world.start(await world.claim_one())
    assert started.traceparent == FIRST
    step = WaitAgain(started.claim, Deadline(delay_ms=0), (), 1, OnFire.RUN, "1")
    await world.here.run([step])
    again = await world.start(await world.claim_one())
    assert (again.round, again.traceparent) == (1, FIRST)
    await world.here.run([GiveBack(again.claim, delay_ms=0, error="once")])
    last = await world.start(await world.claim_one())
    await world.here.finish([Finish(last.claim, JobState.FAILED)])
    await world.there.run([Retry(job.id)])
    retried = await world.job(job.id)
    assert (retried.state, retried.traceparent) == (JobState.WAITING, FIRST)


async def test_a_job_that_is_replaced_has_that_of_its_new_defer(world: World) -> None:
    """One that is kept has its own; one that is replaced without tracing has none."""
    one = world.spec(dedupe_key="d")
    job = (await world.add_spec(replace(one, traceparent=FIRST))).job
    for on_conflict, given, expected in (
        ("keep", SECOND, FIRST),
        ("replace", SECOND, SECOND),
        ("replace", None, None),
    ):
        spec = world.spec(dedupe_key="d", on_conflict=on_conflict)
        added = await world.add_spec(replace(spec, traceparent=given))
        assert added.job.id == job.id
        assert added.job.traceparent == (await world.job(job.id)).traceparent == expected


async def test_a_repeat_in_another_trace_is_the_same_request(world: World) -> None:
    spec = replace(world.spec(idempotency_key="r"), traceparent=FIRST)
    await world.add_spec(spec)
    repeated = await world.add_spec(replace(spec, id=NOBODY, traceparent=SECOND))
    assert repeated.is_repeat and repeated.job.traceparent == FIRST


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_a_client_of_the_store_stores_it_too(tmp_path: Path, is_sync: bool) -> None:
    """If it is given what reads it, also without an event loop; nothing outside any span."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    await migrate(url)
    provider = Provider()

    def deferred() -> list[Job]:
        with SyncJobClient(SqlJobStore(url), propagation=SpanPropagation()) as jobs:
            with provider.start_as_current_span("cron"):
                job = jobs.defer("note", delay=60)
            return [job, jobs.defer("note", delay=60)]

    if is_sync:
        traced, untraced = await asyncio.to_thread(deferred)
    else:
        async with JobClient(SqlJobStore(url), propagation=SpanPropagation()) as client:
            with provider.start_as_current_span("cron"):
                traced = await client.defer("note", delay=60)
            untraced = await client.defer("note", delay=60)
    [span] = provider.named("cron")
    trace_id, span_id = ids(span.get_span_context())
    assert traced.traceparent == f"00-{trace_id:032x}-{span_id:016x}-01"
    assert untraced.traceparent is None


@pytest.mark.parametrize("is_shared", [False, True], ids=["memory", "shared"])
async def test_a_fire_and_a_job_of_a_transaction_are_linked(
    tmp_path: Path, redis_server: ValkeyServer, is_shared: bool
) -> None:
    """To the span in which they were stored, although a relay fires it later."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    await migrate(url)
    prefix = f"outbox-{SystemClock().now_ns()}"
    signals = RedisSignals(redis_server.url, prefix) if is_shared else None
    purgatory = Purgatory(jobs=SqlJobStore(url), signals=signals)
    provider = Provider()
    PurgatoryTracing(purgatory, tracer_provider=provider)

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        pass

    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db")
    with provider.start_as_current_span("start"):
        await purgatory.__aenter__()
    async with AsyncExitStack() as stack:
        stack.push_async_exit(purgatory.__aexit__)
        waits = [asyncio.create_task(purgatory.park(key, timeout=PATIENCE_S)) for key in "kl"]
        await until(lambda: purgatory.parked == 2)
        async with AsyncSession(engine) as session:
            with provider.start_as_current_span("payment") as payment:
                await purgatory.fire("k", session=session)
                handle = await purgatory.defer("note", delay=0, session=session)
            # Outside any span: linked to nothing, such as what was current at the start.
            await purgatory.fire("l", session=session)
            await session.commit()
        assert [outcome.status for outcome in await asyncio.gather(*waits)] == ["fired"] * 2
        await handle.wait(timeout=PATIENCE_S)
    await engine.dispose()
    for name in ("purgatory.wait", "purgatory.job"):
        linked = [ids(link) for span in provider.named(name) for link in span.links]
        assert linked == [ids(payment.get_span_context())]


# Keys that look like the header of an entry.
KEYS = ["k", "f" * 50, "@ab", "@" + "a" * 62, "1 2 3", "é"]


@asynccontextmanager
async def traced(
    url: str, provider: Provider | None, limits: Limits | None = None, shards: int = 1
) -> AsyncIterator[Purgatory]:
    """A purgatory of one process, traced by `provider` if there is one."""
    signals = RedisSignals(url, shards=shards, timeout=PATIENCE_S / 4)
    purgatory = Purgatory(limits=limits, signals=signals)
    if provider is not None:
        PurgatoryTracing(purgatory, tracer_provider=provider)
    async with purgatory:
        yield purgatory


async def entries(url: str) -> list[bytes]:
    """What the log has, as it is stored."""
    async with Redis.from_url(url) as client:
        found: Any = await client.xrange("{purgatory:signals:0}:log")
    return [fields[b"e"] for _, fields in found]


@pytest.mark.anyio
@pytest.mark.parametrize("count", [1, MAX_UNSLICED + 1], ids=["one", "in-slices"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_wait_is_linked_to_the_fire_of_another_process(
    server: ValkeyServer, count: int, shards: int
) -> None:
    """Whoever fires, and however many wait: each has one link, to the span of the fire."""
    provider, fires = Provider(), Provider()
    async with (
        traced(server.url, provider, shards=shards) as here,
        traced(server.url, fires, shards=shards) as there,
    ):
        waits = [asyncio.ensure_future(here.park("k", timeout=PATIENCE_S)) for _ in range(count)]
        await until(lambda: here.parked == count)
        with fires.start_as_current_span("payment") as payment:
            await there.fire("k", 1)
        assert {outcome.value for outcome in await asyncio.gather(*waits)} == {1}
        spans = provider.named("purgatory.wait")
        assert len(spans) == count
        expected = [ids(payment.get_span_context())]
        assert all([ids(link) for link in span.links] == expected for span in spans)


@pytest.mark.anyio
async def test_the_fires_of_a_batch_are_linked_in_their_own_process_too(
    server: ValkeyServer,
) -> None:
    """Whether the reply or the message of an entry is here first."""
    provider = Provider()
    async with traced(server.url, provider, shards=4) as here:
        waits = [asyncio.ensure_future(here.park(key, timeout=PATIENCE_S)) for key in KEYS]
        await until(lambda: here.parked == len(KEYS))
        with provider.start_as_current_span("batch") as batch:
            await here.fire_shared([(key, 1) for key in KEYS])
        await asyncio.gather(*waits)
        expected = [ids(batch.get_span_context())]
        for span in provider.named("purgatory.wait"):
            assert [ids(link) for link in span.links] == expected


@pytest.mark.anyio
async def test_a_fire_that_is_not_traced_is_linked_to_nothing(server: ValkeyServer) -> None:
    """Not to what was current where the process was opened, or where it had the log read."""
    provider = Provider()
    with provider.start_as_current_span("start"):
        async with traced(server.url, provider) as here, traced(server.url, None) as there:
            with provider.start_as_current_span("request"):
                wait = asyncio.ensure_future(here.park("k", timeout=PATIENCE_S))
            await until(lambda: here.parked == 1)
            await there.fire("k", 1)
            assert (await wait).value == 1
    [span] = provider.named("purgatory.wait")
    assert span.has_ended and not span.links


@pytest.mark.anyio
async def test_who_does_not_trace_sends_and_stores_not_a_byte_more(server: ValkeyServer) -> None:
    """Without tracing, outside any span, and where the span is not sampled."""
    async with traced(server.url, None) as here, traced(server.url, Provider()) as there:
        await here.fire("k", 1)
        await there.fire("k", 1)
        await here.fire("k", 1, owner="bob")
    pattern = rb"f\d \d{13} \d 1(@[0-9a-f]{12})? k1"
    stored = await entries(server.url)
    assert len(stored) == 3 and all(re.fullmatch(pattern, entry) for entry in stored)


@pytest.mark.anyio
async def test_what_another_process_has_stored_does_no_harm(server: ValkeyServer) -> None:
    """A trace context that is none is no link; one where nobody traces is passed over."""
    provider = Provider()
    async with traced(server.url, provider) as here, traced(server.url, None) as there:
        waits = [
            asyncio.ensure_future(each.park("k", timeout=PATIENCE_S)) for each in (here, there)
        ]
        await until(lambda: here.parked == there.parked == 1)
        async with Redis.from_url(server.url) as client:
            head = b"%s 1 3:" % here.cursor("k").partition("-")[0].encode()
            entry = b"f1 1790000000000 0 1@%s k7" % (b"z" * 50)
            await client.publish(
                "{purgatory:signals:0}:appended", head[:-2] + b"%d:%s" % (len(entry), entry)
            )
        assert [outcome.value for outcome in await asyncio.gather(*waits)] == [7, 7]
    [wait] = provider.named("purgatory.wait")
    assert wait.has_ended and not wait.links


@pytest.mark.anyio
@pytest.mark.parametrize("owner", [None, "bob"])
async def test_traced_signals_are_kept_and_trimmed_as_others(
    server: ValkeyServer, owner: str | None
) -> None:
    """By key, by number and by owner, whatever the key is called."""
    limits = Limits(max_signals=40, max_signals_per_key=8)
    provider = Provider()
    async with traced(server.url, provider, limits) as here:
        await here.fire("alice", "kept", owner="alice")
        since = here.cursor("other")
        with provider.start_as_current_span("load"):
            for number in range(20):
                for key in KEYS:
                    await here.fire(key, number, owner=owner)
            await here.fire("dropped", 1, owner=owner)
            await here.cancel("dropped")
        async with traced(server.url, None, limits) as later:
            for each in (here, later):
                assert (await each.park("alice", timeout=0, cursor="0")).value == "kept"
                assert each.statistics().signals.signals <= 40
                for key in KEYS:
                    kept = each.signals.read(key, each.signals.earliest(key), 100)
                    values = [each.signals.value(signal) for signal in kept]
                    assert values == list(range(20))[-len(values) :]
            assert since != later.cursor("other")
    traces = [len(entry.split(b" ", 4)[3]) > 50 for entry in await entries(server.url)]
    assert any(traces) and not all(traces)
