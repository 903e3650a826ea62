"""Periodic jobs on every store, with its own clock: two processes, one run for each time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobContext, JobLimits, JobState
from purgatory.jobs.handlers.handler import MARK
from purgatory.timer import SystemClock
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.patience import PATIENCE_S


class Opened:
    """A store that is open, as the test closes it."""

    def __init__(self, store: ContractStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def open(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.in_full
async def test_each_time_has_one_run(make_job_stores: MakeJobStores) -> None:
    """Once for both processes; and the next one waits, by which the series is listed."""
    times: list[int] = []
    enough = asyncio.Event()

    async def tick(job: JobContext) -> None:
        times.append(round(job.deadline.timestamp()))
        if len(times) == 3:
            enough.set()

    stores = make_job_stores(JobLimits(), SystemClock().wall_ms)
    processes = []
    for name in ("here", "there"):
        store: Any = Opened(await stores.connect())
        processes.append(Purgatory(name, jobs=store))
        processes[-1].periodic("tick", every=1)(tick)
    here, there = processes
    async with asyncio.timeout(PATIENCE_S), here, there:
        await enough.wait()
        waiting = await there.jobs.list(state=JobState.WAITING, concurrency_key=MARK)
        while not waiting.jobs:
            await asyncio.sleep(0.05)
            waiting = await there.jobs.list(state=JobState.WAITING, concurrency_key=MARK)
    await stores.close()
    assert len(times) == len(set(times)) and times == sorted(times)
    [job] = waiting.jobs
    assert job.deadline_ms % 1_000 == 0 and job.handler == "tick"
