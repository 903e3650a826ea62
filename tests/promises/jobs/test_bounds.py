"""Handlers that bound how many of their jobs run at once, in all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import InvalidKeyError, Purgatory
from purgatory.jobs import Again, FailJobError, JobContext, JobState, MemoryJobStore
from purgatory.testing import AutojumpEventLoop
from tests.nightly import by_night
from tests.promises.kit import Bench, Log, Process, loop_clock


async def test_as_many_run_as_the_handler_allows(bench: Bench) -> None:
    """In all processes together; the others follow at once, and cost no attempt."""
    here, _ = [await bench.process(bounds={"max_running": 3}) for _ in range(2)]
    bench.log.seconds = 1
    handles = [await here.defer("note", number, delay=1) for number in range(10)]
    await asyncio.sleep(1.5)
    jobs = (await here.jobs.list()).jobs
    waiting = [job for job in jobs if job.state is JobState.WAITING]
    assert {job.blocked_by for job in waiting} == {"max_running"} and len(waiting) == 7
    ended = [await handle.wait(1_000) for handle in handles]
    assert bench.log.most == 3 and {job.attempt for job in ended} == {1}
    assert sorted(run.payload for run in bench.log) == list(range(10))
    # Four rounds of a second, and hardly anything between them.
    assert bench.log.at_s == pytest.approx([1 + number // 3 for number in range(10)], abs=0.1)


async def test_a_full_handler_does_not_hold_up_others(bench: Bench) -> None:
    """Whatever the number of its jobs that are due before."""
    here = await bench.process(bounds={"max_running": 1})
    here.purgatory.handler("slow")(Log())
    bench.log.seconds = 1
    for _ in range(2_000):
        await here.defer("note", delay=1)
    handle = await here.defer("slow", delay=1.1)
    assert (await handle.wait(5)).state is JobState.DONE
    assert len(bench.log) <= 2 and here.statistics.held <= 2


async def test_one_at_a_time_for_a_key(bench: Bench) -> None:
    """In the order of their due times; other keys pass."""
    here = await bench.process(bounds={"max_running_per_key": 1})
    bench.log.seconds = 1
    keys = ["a", "a", "a", "b", None, None]
    handles = [
        await here.defer("note", number, delay=1 + number / 100, concurrency_key=key)
        for number, key in enumerate(keys)
    ]
    ended = [await handle.wait(1_000) for handle in handles]
    assert [run.payload for run in bench.log] == [0, 3, 4, 5, 1, 2] and bench.log.most == 4
    assert [job.concurrency_key for job in ended] == keys


async def test_a_handler_sees_the_key_in_every_round(bench: Bench) -> None:
    """A job that waits again keeps it, as its place in the store does."""
    seen: list[tuple[int, str | None]] = []

    async def note(job: JobContext) -> Again | None:
        seen.append((job.round, job.concurrency_key))
        return job.again(delay=1) if job.round == 0 else None

    here = await bench.process({"note": note}, bounds={"max_running_per_key": 1})
    for key in ("a", None):
        job = await (await here.defer("note", delay=1, concurrency_key=key)).wait(1_000)
        assert job.concurrency_key == key
    assert seen == [(0, "a"), (1, "a"), (0, None), (1, None)]


async def test_wrong_bounds_are_refused(
    make_purgatory: Callable[..., Purgatory], process: Process
) -> None:
    """Where they are given, with what to give."""
    purgatory = make_purgatory(jobs=MemoryJobStore())
    values: list[Any] = [0, -1, True, 1.5, "3"]
    for wrong in values:
        with pytest.raises(ValueError, match="give a number of jobs from 1; to run none, pause"):
            purgatory.handlers.add("x", len, max_running=wrong)
        with pytest.raises(ValueError, match="max_running_per_key of handler 'x'"):
            purgatory.handlers.add("x", len, max_running_per_key=wrong)
    for key in ("", "a\n", "k" * 257):
        with pytest.raises(InvalidKeyError):
            await process.defer("note", delay=1, concurrency_key=key)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 3),  # when it is due, in seconds
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 2),  # how long it runs, in seconds
        st.sampled_from(["done", "fail", "again", "retry", "cancel"]),
    ),
    max_size=12,
)


@settings(max_examples=by_night(60, 25), deadline=None)
@given(JOBS, st.integers(1, 3), st.integers(1, 2), st.sampled_from([0, 2, 30]))
def test_law_bounds_hold_and_all_jobs_end(
    jobs: list[tuple[int, str | None, int, str]], total: int, per_key: int, killed_at: int
) -> None:
    """Whatever the jobs do, and though one of two processes ends meanwhile."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_check_bounds(jobs, total, per_key, killed_at))


async def _check_bounds(
    jobs: list[tuple[int, str | None, int, str]], total: int, per_key: int, killed_at: int
) -> None:
    running: list[str | None] = []
    most = most_of_key = 0

    async def note(job: JobContext, payload: Any) -> Any:
        nonlocal most, most_of_key
        key, seconds, end = payload
        running.append(key)
        most = max(most, len(running))
        most_of_key = max(most_of_key, 0 if key is None else running.count(key))
        try:
            await asyncio.sleep(seconds)
        finally:
            running.remove(key)
        if end == "fail":
            raise FailJobError("it does")
        if end == "retry" and job.attempt == 1:
            raise ValueError("once")
        return job.again(delay=2) if end == "again" and job.round == 0 else None

    log: Any = None
    bench = Bench(lambda **options: Purgatory(clock=loop_clock(), **options), log)
    await bench.database.open()
    async with bench.stack:
        bounds = {"max_running": total, "max_running_per_key": per_key}
        here, there = [await bench.process({"note": note}, bounds=bounds) for _ in range(2)]
        handles = [
            await there.defer("note", [key, seconds, end], delay=delay, concurrency_key=key)
            for delay, key, seconds, end in jobs
        ]
        await asyncio.sleep(1.5)
        for handle, (_, _, _, end) in zip(handles, jobs, strict=True):
            if end == "cancel" and (await handle.get()).state is JobState.WAITING:
                await handle.cancel()
        await asyncio.sleep(killed_at)
        await here.purgatory.close()
        for handle in handles:
            job = await handle.wait(1_000)
            assert job.slot_ms is None and job.blocked_by is None
    assert most <= total and most_of_key <= per_key
