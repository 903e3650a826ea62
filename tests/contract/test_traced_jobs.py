"""The trace context of a defer is stored with the job, in every store."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import Purgatory
from purgatory.jobs import Job, JobContext, JobState, JobStore
from purgatory.jobs.clients import JobClient, SyncJobClient
from purgatory.jobs.model import Deadline, Finish, GiveBack, Retry, WaitAgain
from purgatory.jobs.model.job import OnFire
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.signals.redis import RedisSignals
from purgatory.timer import SystemClock
from purgatory.tracing import PurgatoryTracing, SpanPropagation
from tests.contract.test_redis_signals import until
from tests.contract.world import NOBODY, World
from tests.kept_spans import Provider, ids
from tests.patience import PATIENCE_S
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


@pytest.fixture(params=["sqlite", "redis"])
async def url(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: ValkeyServer
) -> str | None:
    """A database that has tables; None for Redis."""
    if request.param == "redis":
        return None
    url = f"sqlite:///{tmp_path}/jobs.db"
    await migrate(url)
    return url


async def test_the_run_of_a_job_is_linked_to_its_defer_in_another_process(
    url: str | None, redis_server: ValkeyServer
) -> None:
    """By a store that both have; each is traced by a provider of its own."""
    prefix = f"traced-{SystemClock().now_ns()}"

    def store() -> JobStore:
        return RedisJobStore(redis_server.url, prefix=prefix) if url is None else SqlJobStore(url)

    here, there = Purgatory("here", jobs=store()), Purgatory("there", jobs=store())
    defers, runs = Provider(), Provider()
    PurgatoryTracing(here, tracer_provider=defers)
    PurgatoryTracing(there, tracer_provider=runs)
    here.handled_elsewhere(["note"])

    @there.handler("note")
    async def note(job: JobContext) -> None:
        pass

    async with here, there:
        with defers.start_as_current_span("order") as order:
            handle = await here.defer("note", delay=0)
        await handle.wait(timeout=PATIENCE_S)
    [run] = runs.named("purgatory.job")
    assert [ids(link) for link in run.links] == [ids(order.get_span_context())]
    assert defers.named("purgatory.job") == []


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
