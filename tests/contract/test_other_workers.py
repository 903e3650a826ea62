"""Another process on the same jobs is noticed, whatever the store, and a deploy is not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobState, JobStore, MemoryJobStore, other_workers
from purgatory.jobs.model import Finish
from purgatory.jobs.other_workers import OVERLAP_MS, OtherWorkers
from purgatory.jobs.redis import RedisJobStore
from purgatory.signals.redis import RedisSignals
from tests.contract.world import LEASE_MS, World
from tests.valkey_server import ValkeyServer


async def run(world: World, worker: str) -> None:
    """Have `worker` run a job to its end."""
    await world.add(delay=0)
    for job in await world.claim(world.there, worker=worker):
        await world.there.start([job.claim], lease_ms=LEASE_MS)
        assert await world.there.finish([Finish(job.claim, JobState.DONE)]) == [True]


async def test_another_process_that_stays_is_named_with_the_line_that_fixes_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it was at work for a while beside this one."""
    caplog.set_level(logging.WARNING, "purgatory.jobs")
    looking = OtherWorkers(world.here, "here")
    await run(world, "here")
    await run(world, "host-7")
    assert not await looking.look()
    world.now_ms += OVERLAP_MS - 1
    await run(world, "here")
    await run(world, "host-7")
    assert not await looking.look() and not caplog.messages
    world.now_ms += 1
    await run(world, "host-7")
    assert await looking.look()
    (message,) = caplog.messages
    assert "host-7" in message and 'RedisSignals("redis://localhost:6379")' in message


async def test_a_long_job_of_another_process_shows_it(world: World) -> None:
    """As long as it has its lease."""
    looking = OtherWorkers(world.here, "here")
    await world.add(delay=0)
    (job,) = await world.claim(world.there, worker="host-7")
    await world.there.start([job.claim], lease_ms=LEASE_MS)
    for _ in range(2 * OVERLAP_MS // LEASE_MS):
        assert not await looking.look()
        world.now_ms += LEASE_MS - 1
        await world.there.renew([job.claim], lease_ms=LEASE_MS)
        if world.now_ms - job.created_ms >= OVERLAP_MS:
            break
    assert await looking.look()


async def test_processes_that_are_replaced_are_no_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from before this one, one that dies beside it, and many that stay for a moment."""
    monkeypatch.setattr(other_workers, "MAX_WORKERS", 5)
    await run(world, "before")
    world.now_ms += 1
    looking = OtherWorkers(world.here, "here")
    await world.add(delay=0)
    assert await world.claim(world.there, worker="killed")
    for number in range(12):
        await run(world, f"moment-{number}")
        assert not await looking.look()
        world.now_ms += OVERLAP_MS // 4
    assert len(looking._first_ms) <= 5


async def test_only_processes_with_signals_of_their_own_look(redis_server: ValkeyServer) -> None:
    """Those that share signals are wanted, and jobs in memory are of one process."""
    stores: list[tuple[JobStore, RedisSignals | None]] = [
        (RedisJobStore(redis_server.url, "looked-into"), None),
        (RedisJobStore(redis_server.url, "looked-into"), RedisSignals(redis_server.url, "shared")),
        (MemoryJobStore(), None),
    ]
    looking = []
    for store, signals in stores:
        async with Purgatory("looks", jobs=store, signals=signals):
            names = [task.get_name() for task in asyncio.all_tasks()]
            looking.append("purgatory-other-workers" in names)
        assert "purgatory-other-workers" not in [each.get_name() for each in asyncio.all_tasks()]
    assert looking == [True, False, False]
