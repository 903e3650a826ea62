"""Stores that are away, or whose clock and ours differ."""

from __future__ import annotations

import asyncio
import logging

import pytest

from purgatory import Purgatory, PurgatoryClosedError
from purgatory.jobs import (
    JobContext,
    JobLimits,
    JobState,
    MemoryJobStore,
    StoreError,
    StoreUnavailableError,
)
from purgatory.jobs.model import StoreFullError, StoreNotReadyError, StoreReadOnlyError
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms, on_time, settings

# A store that fails


def _store_error(purgatory: Purgatory) -> str:
    """Return the reason, which clients are not told."""
    assert "nowhere:1" not in str(purgatory.missing)
    statistics = purgatory.statistics().jobs
    assert statistics is not None
    return str(statistics.store_error)


async def test_an_outage_loses_nothing(
    purgatory: Purgatory, store: FailingJobStore, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs wait until the store is back; it is logged once, and shown."""
    handles = [await purgatory.defer("note", n, delay=n) for n in range(1, 100, 10)]
    await asyncio.sleep(5)
    with caplog.at_level(logging.INFO, "purgatory.jobs"):
        store.is_down = True
        await asyncio.sleep(60)
        assert purgatory.missing and "nowhere:1" in _store_error(purgatory)
        with pytest.raises(StoreUnavailableError):
            await purgatory.defer("note", delay=1)
        store.is_down = False
        await asyncio.sleep(60)
    assert purgatory.missing == []
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert (actions.count("store-lost"), actions.count("store-back")) == (1, 1)
    assert sorted(run.payload for run in log) == list(range(1, 100, 10))
    assert {(await handle.get()).state for handle in handles} == {JobState.DONE}


@pytest.mark.parametrize(
    "error", [StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError]
)
async def test_an_outage_while_a_handler_runs(
    store: FailingJobStore, make_purgatory: Make, error: type[StoreError]
) -> None:
    """It is recorded when the store is back, or its disk has room, and not run again."""
    store.error = error
    purgatory = make_purgatory(jobs=store)
    runs = 0

    @purgatory.handler("cut")
    async def cut(job: JobContext) -> None:
        nonlocal runs
        runs += 1
        store.is_down = True
        await asyncio.sleep(50)

    async with purgatory:
        handle = await purgatory.defer("cut", delay=1)
        await asyncio.sleep(100)
        assert purgatory.missing and "nowhere:1" in _store_error(purgatory)
        store.is_down = False
        job = await handle.wait()
    assert (job.state, job.attempt, runs) == (JobState.DONE, 1, 1)


async def test_a_store_that_is_away_at_the_start(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """It is tried again; parking works meanwhile."""
    store.is_down = True
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        assert purgatory.missing and "nowhere:1" in _store_error(purgatory)
        with pytest.raises(StoreUnavailableError, match="not open"):
            await purgatory.defer("note", delay=1)
        # Nobody knows whether a job waits on it.
        assert (await purgatory.fire("k")).jobs_pending
        store.is_down = False
        await asyncio.sleep(10)
        assert (await (await purgatory.defer("note", delay=1)).wait()).state is JobState.DONE


async def test_a_store_is_closed_after_it_has_ended_to_open(make_purgatory: Make) -> None:
    """What opening has begun is undone first, however long that takes."""
    steps: list[str] = []

    class SlowStore(MemoryJobStore):
        async def open(self) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(1)
                steps.append("undone")

        async def close(self) -> None:
            steps.append("closed")
            await super().close()

    purgatory = make_purgatory(jobs=SlowStore())
    opening = asyncio.ensure_future(purgatory.__aenter__())
    await asyncio.sleep(1)
    await purgatory.close()
    assert steps == ["undone", "closed"]
    with pytest.raises(PurgatoryClosedError):
        await opening


async def test_a_store_that_is_not_set_up_stops_the_start(make_purgatory: Make) -> None:
    """With its own sentence and its cause, and without the calls within the store."""

    class Bare(MemoryJobStore):
        async def open(self) -> None:
            raise StoreNotReadyError("migrate first") from LookupError("no table")

    purgatory = make_purgatory(jobs=Bare())
    with pytest.raises(StoreNotReadyError, match="migrate first") as caught:
        await purgatory.__aenter__()
    assert not purgatory.is_open
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.traceback[-1].name == "wait"


async def test_a_store_that_comes_up_without_tables(
    store: FailingJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody watches any more who could be told: it is tried until somebody has migrated."""
    answers: list[Exception | None] = [
        *(StoreUnavailableError(), StoreUnavailableError(), StoreNotReadyError("migrate")),
        *(StoreReadOnlyError(), StoreError("no such database"), None),
    ]

    class Late(FailingJobStore):
        async def open(self) -> None:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            await super().open()

    async with make_purgatory(jobs=Late(now_ms)) as purgatory:
        assert purgatory.missing
        await asyncio.sleep(10)
        assert answers == []
        assert purgatory.missing == []
    # Each thing that it says is in the log, once.
    assert caplog.text.count("it is tried again until it can") == 4


async def test_a_store_that_goes_away_at_the_start(make_purgatory: Make, log: Log) -> None:
    """Between being opened and being looked at: that is an outage like any other."""

    class Brief(FailingJobStore):
        async def check(self) -> list[str]:
            self.is_down = True
            raise StoreUnavailableError("gone again")

    leap(1_800_000_000_000)
    store = Brief(now_ms)
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        await asyncio.sleep(1)
        assert purgatory.missing
        store.is_down = False
        await asyncio.sleep(5)
        assert purgatory.missing == []
        assert (await (await purgatory.defer("note", delay=1)).wait()).state is JobState.DONE


# Clocks


@pytest.mark.parametrize("ms", [3_600_000, -3_600_000, 86_400_000])
async def test_a_leap_of_the_local_wall_clock(
    store: FailingJobStore, make_purgatory: Make, log: Log, ms: int
) -> None:
    """Deadlines are the store's: nothing early, nothing late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    clock, offset_ms = loop.clock, now_ms() - loop.clock.now_ns() // 1_000_000
    own = MemoryJobStore(now_ms=lambda: clock.now_ns() // 1_000_000 + offset_ms)
    purgatory = make_purgatory(jobs=own)
    runs: list[int] = []

    @purgatory.handler("tick")
    async def tick(job: JobContext) -> None:
        runs.append(clock.now_ns() // 1_000_000 + offset_ms)

    async with purgatory:
        at_ms = await own.now_ms()
        for delay in (10, 100):
            await purgatory.defer("tick", delay=delay)
        await asyncio.sleep(1)
        leap(ms)
        await asyncio.sleep(200)
    assert on_time([run - at_ms for run in runs], [10_000, 100_000])


async def test_a_store_whose_clock_steps_back(
    purgatory: Purgatory, store: MemoryJobStore, log: Log
) -> None:
    """What was armed fires here too soon, is refused by the store, and waits for the rest."""
    await purgatory.defer("note", delay=10)
    await asyncio.sleep(5)
    leap(-20_000)
    await asyncio.sleep(6)
    assert log == []
    await asyncio.sleep(30)
    [run] = log
    assert run.at_ms >= run.job.deadline.timestamp() * 1000


async def test_history_is_pruned(make_purgatory: Make, log: Log) -> None:
    """By count and by age, in the background."""
    leap(1_800_000_000_000)
    store = MemoryJobStore(now_ms=now_ms, limits=JobLimits(history_count=5, history_age_ms=600_000))
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        for _ in range(20):
            await purgatory.defer("note", delay=0)
        await asyncio.sleep(100)
        assert (await purgatory.job_counts()).done == 5
        await asyncio.sleep(700)
        assert (await purgatory.job_counts()).done == 0


async def test_starts_whose_answers_are_lost_spend_no_attempts(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """What is counted is what may have run."""
    purgatory, attempts = make_purgatory(jobs=store, job_settings=settings()), list[int]()

    @purgatory.handler("fail")
    async def fail(job: JobContext) -> None:
        attempts.append(job.attempt)
        raise ValueError("not this time")

    async with purgatory:
        store.lost_starts = 3
        job = await (await purgatory.defer("fail", delay=0, max_attempts=2)).wait(60)
    assert (job.state, job.attempt, attempts) == (JobState.FAILED, 2, [1, 2])
