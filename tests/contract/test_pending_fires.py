"""Fires while a real store is away: acknowledged at once, and decided when it is back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from purgatory import Limits, Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.jobs import JobOutcome, JobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.signals.redis import RedisSignals, records
from purgatory.timer import SystemClock
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

HOUR_S = 3_600


@asynccontextmanager
async def purgatory_on(store: JobStore, **options: Any) -> AsyncIterator[Purgatory]:
    async with Purgatory(jobs=store, **options) as purgatory:
        purgatory.handled_elsewhere(["note"])
        yield purgatory


async def fire_in_an_outage(purgatory: Purgatory) -> None:
    """Who is parked is woken, and the fire is acknowledged, before the store is back."""
    parked = asyncio.create_task(purgatory.park("k", timeout=PATIENCE_S))
    await asyncio.sleep(0)
    fired = await purgatory.fire("k", 7)
    assert fired.jobs_pending and (await parked).value == 7


async def decided(purgatory: Purgatory, job_id: str) -> None:
    job = await purgatory.job(job_id).get()
    async with asyncio.timeout(PATIENCE_S):
        while job.outcome is None:
            await asyncio.sleep(0.05)
            job = await purgatory.job(job_id).get()
    assert (job.outcome, job.fired_json) == (JobOutcome.FIRED, "7")


async def test_a_sqlite_file_that_is_locked(tmp_path: Path) -> None:
    """By another process that takes its time; what is deferred afterwards is not decided."""
    await migrate(f"sqlite:///{tmp_path}/jobs.db")
    async with purgatory_on(SqlJobStore(f"sqlite:///{tmp_path}/jobs.db")) as purgatory:
        handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await fire_in_an_outage(purgatory)
        other.execute("ROLLBACK")
        other.close()
        await decided(purgatory, handle.id)
        later = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
        await asyncio.sleep(0.3)
        assert (await later.get()).outcome is None


async def test_many_at_once_share_a_round_trip(lone_redis_server: ValkeyServer) -> None:
    """Each with a connection of its own, they would leave none for the log of signals."""
    limits = Limits(max_value_bytes=100)
    signals = RedisSignals(lone_redis_server.url)
    async with (
        Purgatory(signals=signals, limits=limits),
        Redis.from_url(lone_redis_server.url) as client,
    ):
        await signals.pending_fires.add(b"before")
        await client.config_resetstat()
        await asyncio.gather(*(signals.pending_fires.add(b"%d" % number) for number in range(500)))
        calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        found = await signals.pending_fires.first(1_000)
        expected = [b"before", *(b"%d" % number for number in range(500))]
        assert found == expected
        assert calls < 50
        await signals.pending_fires.remove(found)
        assert not await client.keys("*pending*")


async def test_no_more_are_pending_than_the_limit(
    redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not fit are refused, each by itself."""
    monkeypatch.setattr(records, "MAX_PENDING", 3)
    signals = RedisSignals(redis_server.url, f"pending-{SystemClock().now_ns()}")
    async with Purgatory(signals=signals):
        adding = (signals.pending_fires.add(b"%d" % number) for number in range(5))
        results = await asyncio.gather(*adding, return_exceptions=True)
        assert [isinstance(each, SignalsUnavailableError) for each in results] == [
            False,
            False,
            False,
            True,
            True,
        ]
        assert await signals.pending_fires.first(10) == [b"0", b"1", b"2"]
        # Behind one that waits for a lock.
        assert await signals.pending_fires.first(1, 1) == [b"1"]


async def test_what_is_pending_at_the_end_is_kept(lone_redis_server: ValkeyServer) -> None:
    """Closing waits for what is on its way, though Redis is slow."""
    async with Redis.from_url(lone_redis_server.url) as client:
        async with Purgatory(signals=(signals := RedisSignals(lone_redis_server.url))):
            await client.client_pause(200, all=False)
            adding = [
                asyncio.create_task(signals.pending_fires.add(b"%d" % number))
                for number in range(5)
            ]
            await asyncio.sleep(0)
        await asyncio.gather(*adding)
    async with Purgatory(signals=RedisSignals(lone_redis_server.url)) as after:
        assert after.shared_signals is not None
        assert len(await after.shared_signals.pending_fires.first(10)) == 5
