"""Clients of a job store, without a purgatory: on every store, and from threads."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory, Status
from purgatory.errors import InvalidKeyError
from purgatory.jobs import (
    InvalidPayloadError,
    JobContext,
    JobNotFoundError,
    JobOutcome,
    JobState,
    MemoryJobStore,
    StoreError,
)
from purgatory.jobs.clients import JobClient, SyncJobClient
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore
from purgatory.signals.redis import RedisSignals
from tests.cases import cases
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


async def test_what_a_client_defers_is_run_by_a_service(redis_server: ValkeyServer) -> None:
    """In another process, here on another store object; a fire of jobs decides them."""
    runs: list[Any] = []
    service = Purgatory(jobs=RedisJobStore(redis_server.url, "clients"))

    @service.handler("note")
    async def note(job: JobContext, payload: dict[str, int]) -> None:
        runs.append((payload, job.fired_value))

    async with service, JobClient(RedisJobStore(redis_server.url, "clients")) as client:
        first = await client.defer("note", {"n": 1}, delay=0)
        second = await client.defer("note", {"n": 2}, delay=3_600, keys=["paid"])
        third = await client.defer("note", {"n": 3}, delay=3_600, keys=["paid"], on_fire="cancel")
        with pytest.raises(InvalidKeyError):
            await client.fire_jobs("")
        assert await client.fire_jobs("paid", {"by": "card"}) == 2
        for job in (first, second):
            assert (await service.job(job.id).wait(20)).state is JobState.DONE
        assert (await client.get(third.id)).outcome is JobOutcome.FIRED
    assert sorted(runs, key=str) == [({"n": 1}, None), ({"n": 2}, {"by": "card"})]


@pytest.mark.parametrize("way", ["outbox", "signals"])
async def test_a_fire_of_a_process_without_an_event_loop_wakes_waiters(
    tmp_path: Path, sqlite_template: Path, redis_server: ValkeyServer, way: str
) -> None:
    """As any fire: with its value, once, also for jobs; through the database, or the signals."""

    def make() -> dict[str, Any]:
        path = tmp_path / "jobs.db"
        if not path.exists():
            path.write_bytes(sqlite_template.read_bytes())
        store = SqlJobStore(f"sqlite:///{path}")
        if way == "outbox":
            return {"jobs": store}
        return {"jobs": store, "signals": RedisSignals(redis_server.url, "clients")}

    async with Purgatory(**make()) as service:
        ran: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        @service.handler("note")
        async def note(job: JobContext) -> None:
            ran.set_result(job.fired_value)

        await service.defer("note", delay=3_600, keys=["paid"])
        parked = asyncio.create_task(service.park("paid", timeout=PATIENCE_S))
        await asyncio.sleep(0)
        assert service.parked == 1

        def fire() -> None:
            given = make()
            with SyncJobClient(given.pop("jobs"), **given) as client:
                client.fire("paid", {"by": "card"})

        await asyncio.to_thread(fire)
        outcome = await parked
        assert (outcome.status, outcome.value) == (Status.FIRED, {"by": "card"})
        async with asyncio.timeout(PATIENCE_S):
            assert await ran == {"by": "card"}
        assert service.statistics().fires == (1 if way == "outbox" else 0)


async def test_a_fire_that_would_reach_nobody_is_refused() -> None:
    """It says what it needs."""
    async with JobClient(MemoryJobStore()) as client:
        with pytest.raises(TypeError, match=r"fire needs shared signals, or jobs in a database"):
            await client.fire("paid")


async def test_a_client_changes_jobs() -> None:
    """Each method does what that of a purgatory does, and raises what that raises."""
    async with JobClient(MemoryJobStore()) as client:
        job = await client.defer("note", delay=60, keys=["k"], concurrency_key="c")
        assert job.concurrency_key == "c"
        moved = await client.reschedule(job.id, delay=600, if_version=job.version)
        assert moved.deadline_ms > job.deadline_ms + 500_000
        assert (await client.run_now(job.id)).due_ms < moved.due_ms
        assert (await client.cancel(job.id)).state is JobState.CANCELLED
        await client.defer("note", delay=60, keys=["k"])
        assert await client.cancel_for_key("k") == 1
        with pytest.raises(JobNotFoundError):
            await client.get("none")
        with pytest.raises(InvalidPayloadError):
            await client.defer("note", object(), delay=1)


@cases("make", [JobClient, SyncJobClient])
def test_what_is_no_store_is_said_at_once(make: Any) -> None:
    """With an example."""
    for wrong in ("sqlite:///jobs.db", MemoryJobStore, None):
        with pytest.raises(TypeError, match=r"store is .*: give a job store, such as"):
            make(wrong)


def test_a_client_without_an_event_loop(tmp_path: Path, sqlite_template: Path) -> None:
    """Of several threads; it ends with its thread, and can be opened again."""
    path = tmp_path / "jobs.db"
    path.write_bytes(sqlite_template.read_bytes())
    client = SyncJobClient(SqlJobStore(f"sqlite:///{path}"))
    for _ in range(2):
        with client, ThreadPoolExecutor(4) as threads:
            jobs = list(threads.map(lambda n: client.defer("note", n, delay=60), range(20)))
            assert client.fire_jobs("nothing") == 0
            assert client.cancel(jobs[0].id).state is JobState.CANCELLED
            assert client.run_now(jobs[1].id).due_ms < jobs[1].due_ms
            assert client.reschedule(jobs[2].id, delay=99).due_ms > jobs[2].due_ms
            assert client.cancel_for_key("nothing") == 0
            assert {client.get(job.id).payload for job in jobs} == set(range(20))
    with pytest.raises(RuntimeError, match="not open in this process"):
        client.get(jobs[0].id)


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    """The error is raised as it is."""
    with pytest.raises(StoreError, match="there is no folder"):
        SyncJobClient(SqlJobStore(f"sqlite:///{tmp_path}/none/jobs.db")).__enter__()


def test_a_client_of_the_parent_of_a_fork_is_refused() -> None:
    """Its thread runs in the parent only: without the sentence, the call would never return."""
    with SyncJobClient(MemoryJobStore()) as client:
        client._process = os.getpid() + 1
        with pytest.raises(RuntimeError, match="after a fork"):
            client.defer("note", delay=1)
        client._process = os.getpid()
