"""Stores that are away, slow or broken, and clocks that differ."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory import PurgatoryClosedError
from purgatory.job_errors import (
    StoreBusyError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
)
from purgatory.jobs import JobState, StoreError, StoreUnavailableError
from tests.promises.kit import LEASE_S, Bench, Process, loop_clock, now_ms

OUTAGES = [StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError]


@pytest.mark.parametrize("error", OUTAGES)
async def test_an_outage_loses_nothing(
    bench: Bench, process: Process, error: type[StoreError]
) -> None:
    """Jobs wait until the store is back; results too, which run once. It is logged once."""
    bench.log.seconds = 3
    handles = [await process.defer("note", n, delay=n) for n in range(1, 100, 10)]
    await asyncio.sleep(13)
    process.link.cut(error("nobody listens at nowhere:1"))
    await asyncio.sleep(60)
    assert process.missing and "nowhere" not in str(process.missing)
    assert "nowhere:1" in str(process.statistics.store_error) and process.statistics.outages == 1
    with pytest.raises(StoreError):
        await process.defer("note", delay=1)
    process.link.mend()
    await asyncio.sleep(60)
    assert process.missing == [] and process.statistics.store_error is None
    assert bench.actions("store-lost", "store-back") == ["store-lost", "store-back"]
    assert sorted(run.payload for run in bench.log) == list(range(1, 100, 10))
    assert {(await bench.job(each)).state for each in handles} == {JobState.DONE}


@pytest.mark.parametrize("kind", ["Start", "Finish", "GiveBack", "WaitAgain"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_step_is_repeated_until_it_is_done(bench: Bench, kind: str, is_lost: bool) -> None:
    """Though the answers to it are lost: it spends no attempt, and is done once."""
    attempts: list[tuple[int, int]] = []

    async def work(job: Any) -> Any:
        attempts.append((job.round, job.attempt))
        if kind == "GiveBack" and job.attempt == 1:
            raise ValueError("not this time")
        return job.again(delay=1) if kind == "WaitAgain" and job.round == 0 else None

    one = await bench.process({"note": work})
    one.link.on(kind, error=StoreUnavailableError("gone"), is_lost=is_lost, times=3)
    job = await (await one.defer("note", delay=0, max_attempts=2)).wait(60)
    assert job.state is JobState.DONE
    assert attempts == {"GiveBack": [(0, 1), (0, 2)], "WaitAgain": [(0, 1), (1, 1)]}.get(
        kind, [(0, 1)]
    )


async def test_it_is_tried_less_and_less_often(bench: Bench, process: Process) -> None:
    """Every two seconds in the end; a step that waits for one job is no outage."""
    job = await process.defer("note", delay=0.1)
    process.link.on("Start", error=StoreBusyError("locked"))
    await asyncio.sleep(60)
    assert 30 <= process.link.count("Start") <= 80 and process.statistics.outages == 0
    assert "job-locked" in bench.actions() and process.missing == []
    process.link.mend()
    assert (await job.wait(3)).state is JobState.DONE


async def test_jobs_of_an_outage_were_missed(bench: Bench, process: Process) -> None:
    """They were due while no worker could run them; an outage of reads alone is one, too."""
    job = await process.defer("note", delay=100, misfire="skip")
    process.link.on("Claim", error=StoreUnavailableError("no reads"))
    await asyncio.sleep(200)
    assert process.missing
    process.link.mend()
    await asyncio.sleep(20)
    assert (await bench.job(job)).outcome == "missed" and process.missing == []


async def test_a_store_that_is_away_at_the_start(bench: Bench) -> None:
    """It is tried again; parking works meanwhile, and nobody knows whether a job waits on a key."""
    one = await bench.process(down=True)
    assert one.missing
    with pytest.raises(StoreUnavailableError, match="not open"):
        await one.defer("note", delay=1)
    assert (await one.fire("k")).jobs_pending
    one.link.mend()
    await asyncio.sleep(10)
    assert (await (await one.defer("note", delay=1)).wait()).state is JobState.DONE


@pytest.mark.parametrize(
    "errors", [OUTAGES, [StoreUnavailableError, StoreUnavailableError, StoreError]]
)
async def test_a_store_that_comes_up_in_steps(bench: Bench, errors: Any) -> None:
    """Each thing that it says is in the log, once."""
    one = await bench.process(down=True)
    one.link.mend()
    for error in errors:
        one.link.on("open", error=error(f"no: {error.__name__}"), times=1)
    await asyncio.sleep(30)
    assert one.missing == [] and one.link.count("open") >= len(errors) + 2
    lines = bench.caplog.text.count("it is tried again until it can")
    assert len(set(errors)) <= lines <= len(errors) + 1


async def test_a_store_that_is_not_set_up_stops_the_start(bench: Bench) -> None:
    """With its own sentence and its cause."""

    class Bare(type(bench.database)):  # type: ignore[misc] # a class made here
        async def open(self) -> None:
            raise StoreNotReadyError("migrate first") from LookupError("no table")

    bench.database = Bare()
    with pytest.raises(StoreNotReadyError, match="migrate first") as caught:
        await bench.process()
    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_store_that_goes_away_once_it_is_open(bench: Bench) -> None:
    """That it could not be checked is said; it is an outage like any other."""

    class Leaving(type(bench.database)):  # type: ignore[misc] # a class made here
        async def check(self) -> None:
            raise StoreUnavailableError("gone")

    bench.database = Leaving()
    one = await bench.process()
    assert (await (await one.defer("note", delay=1)).wait()).state is JobState.DONE
    assert "could not check the job store (gone)" in bench.caplog.text


async def test_a_store_is_closed_after_it_has_ended_to_open(bench: Bench) -> None:
    """However long that takes."""
    opening = asyncio.ensure_future(_stalled(bench))
    await asyncio.sleep(1)
    opening.cancel()
    with pytest.raises((PurgatoryClosedError, asyncio.CancelledError)):
        await opening


async def _stalled(bench: Bench) -> Process:
    bench.database.open = lambda: asyncio.sleep(60)
    return await bench.process()


@pytest.mark.parametrize("leap_s", [3_600, -600, 86_400])
async def test_a_leap_of_the_wall_clock(bench: Bench, process: Process, leap_s: int) -> None:
    """Nothing is early by the database's clock, and nothing that is due later is lost."""
    for delay in (10, 100):
        await process.defer("note", delay=delay)
    await asyncio.sleep(1)
    loop_clock().set_wall(now_ms() + leap_s * 1000)
    await asyncio.sleep(200 + max(0, -leap_s))
    assert len(bench.log) == 2
    assert all(run.at_ms >= run.job.deadline.timestamp() * 1000 for run in bench.log)


@pytest.mark.parametrize("leap_s", [20, -20])
async def test_leases_are_renewed_once_a_leap_is_noticed(
    bench: Bench, process: Process, leap_s: int
) -> None:
    """By the new time they have run out, or begin in the future: others could take the jobs."""
    job = await process.defer("note", delay=50)
    await asyncio.sleep(1)
    loop_clock().set_wall(now_ms() + 1000 * leap_s)
    await (await process.defer("note", delay=0)).wait(1)
    assert bench.actions("clock-set") and len(bench.log) == 1
    await asyncio.sleep(0.01)
    assert 0 < (await bench.job(job)).lease_until_ms - now_ms() <= LEASE_S * 1000


async def test_a_run_goes_on_though_its_lease_begins_in_the_future(
    bench: Bench, process: Process
) -> None:
    """The clock was set back: others give its process the time to notice."""
    other = await bench.process()
    bench.log.seconds = 15
    await process.defer("note", delay=0)
    await asyncio.sleep(LEASE_S)
    loop_clock().set_wall(now_ms() - 600_000)
    for _ in range(3):
        await other.defer("note", delay=0)
        await asyncio.sleep(0.1)
    await asyncio.sleep(40)
    assert (await bench.database.counts()).done == len(bench.log) == 4


async def test_a_run_whose_lease_was_over_goes_on_in_its_process(
    bench: Bench, process: Process
) -> None:
    """It claims the job again, with others, and does not begin it beside itself."""
    bench.log.seconds = 15
    job = await process.defer("note", delay=0)
    await asyncio.sleep(1)
    loop_clock().set_wall(now_ms() + 20_000)
    await process.defer("note", delay=0)
    await asyncio.sleep(40)
    assert (await bench.job(job)).state is JobState.DONE and len(bench.log) == 2


@pytest.mark.parametrize("slow", [{"ask_s": 3}, {"reply_s": 3}])
async def test_slow_replies_make_nothing_early_and_little_late(
    bench: Bench, process: Process, slow: dict[str, float]
) -> None:
    """The clock of the store is followed from below: about two round trips."""
    process.link.on("Claim", "now_ms", **slow)
    await process.defer("note", delay=20)
    await asyncio.sleep(40)
    assert 20 <= bench.log.at_s[0] <= 26.1
