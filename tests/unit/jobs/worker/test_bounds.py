"""Handlers that bound how many of their jobs run at once, in all processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import InvalidKeyError, Purgatory
from purgatory.jobs import Again, FailJobError, Job, JobContext, JobState, MemoryJobStore
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.runs import Make, leap, now_ms
from tests.unit.jobs.worker.runs import settings as worker_settings

Open = Callable[..., Awaitable[Purgatory]]


class Runs:
    """A handler that takes a second, and how many of it ran at once."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.payloads: list[Any] = []

    async def __call__(self, job: JobContext, payload: Any) -> None:
        self.running.append(job.id)
        self.most = max(self.most, len(self.running))
        self.payloads.append(payload)
        try:
            await asyncio.sleep(1)
        finally:
            self.running.remove(job.id)


@pytest.fixture
def runs() -> Runs:
    """What was run, in all processes."""
    return Runs()


@pytest.fixture
async def open_process(store: MemoryJobStore, make_purgatory: Make) -> AsyncIterator[Open]:
    """Open purgatories on one store, as so many processes would."""
    async with AsyncExitStack() as stack:

        async def open_process(handler: Any, **bounds: Any) -> Purgatory:
            purgatory = make_purgatory(jobs=SharedStore(store), job_settings=worker_settings())
            purgatory.handler("note", **bounds)(handler)
            return await stack.enter_async_context(purgatory)

        await store.open()
        yield open_process


class SharedStore:
    """The store of another process: closing it closes nothing."""

    def __init__(self, store: MemoryJobStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def open(self) -> None:
        """It is."""

    async def close(self) -> None:
        """Others use it."""


async def wait_all(*handles: Any) -> list[Job]:
    return [await handle.wait(1_000) for handle in handles]


async def test_as_many_run_as_the_handler_allows(open_process: Open, runs: Runs) -> None:
    """In all processes together; the others follow at once, and cost no attempt."""
    here = await open_process(runs, max_running=3)
    await open_process(runs, max_running=3)
    start_ms = now_ms()
    handles = [await here.defer("note", number, delay=1) for number in range(10)]
    await asyncio.sleep(1.5)
    jobs = (await here.jobs.list()).jobs
    waiting = [job for job in jobs if job.state is JobState.WAITING]
    assert {job.blocked_by for job in waiting} == {"max_running"} and len(waiting) == 7
    ended = await wait_all(*handles)
    assert runs.most == 3 and {job.attempt for job in ended} == {1}
    assert sorted(runs.payloads) == list(range(10))
    # Four rounds of a second, and hardly anything between them.
    assert 5_000 <= now_ms() - start_ms <= 5_100


async def test_a_full_handler_does_not_hold_up_others(open_process: Open, runs: Runs) -> None:
    """Whatever the number of its jobs that are due before."""
    here = await open_process(runs, max_running=1)
    others = Runs()
    here.handler("other")(others)
    for _ in range(2_000):
        await here.defer("note", delay=1)
    handle = await here.defer("other", delay=1.1)
    assert (await handle.wait(5)).state is JobState.DONE
    assert len(runs.payloads) <= 2
    statistics = here.statistics().jobs
    assert statistics is not None and statistics.held <= 2


async def test_one_at_a_time_for_a_key(open_process: Open, runs: Runs) -> None:
    """In the order of their due times; other keys pass."""
    here = await open_process(runs, max_running_per_key=1)
    keys = ["a", "a", "a", "b", None, None]
    handles = [
        await here.defer("note", number, delay=1 + number / 100, concurrency_key=key)
        for number, key in enumerate(keys)
    ]
    ended = await wait_all(*handles)
    assert runs.payloads == [0, 3, 4, 5, 1, 2] and runs.most == 4
    assert [job.concurrency_key for job in ended] == keys


async def test_a_handler_sees_the_key_in_every_round(open_process: Open) -> None:
    """A job that waits again keeps it, as its place in the store does."""
    seen: list[tuple[int, str | None]] = []

    async def handler(job: JobContext) -> Again | None:
        seen.append((job.round, job.concurrency_key))
        return job.again(delay=1) if job.round == 0 else None

    here = await open_process(handler, max_running_per_key=1)
    with_key = await here.defer("note", delay=1, concurrency_key="a")
    await wait_all(with_key)
    await wait_all(await here.defer("note", delay=1))
    assert seen == [(0, "a"), (1, "a"), (0, None), (1, None)]
    assert (await with_key.get()).concurrency_key == "a"


async def test_places_of_jobs_that_fail_or_wait_again_are_free(open_process: Open) -> None:
    """While they wait for the next attempt, or round."""
    seen: list[Any] = []

    async def handle(job: JobContext, payload: Any) -> Any:
        seen.append((payload, job.attempt, job.round))
        if payload == "fails" and job.attempt == 1:
            raise ValueError("once")
        if payload == "again" and job.round == 0:
            return job.again(delay=10)
        if payload == "ends":
            raise FailJobError("for good")
        return None

    here = await open_process(handle, max_running=1)
    names = ["fails", "again", "ends", "works"]
    handles = [
        await here.defer("note", name, delay=1 + place / 100) for place, name in enumerate(names)
    ]
    ended = await wait_all(*handles)
    states = [job.state for job in ended]
    assert states == [JobState.DONE, JobState.DONE, JobState.FAILED, JobState.DONE]
    assert [name for name, _, _ in seen[:4]] == names
    assert sorted(seen[4:]) == [("again", 1, 1), ("fails", 2, 0)]


async def test_a_process_that_ends_gives_its_places_back(open_process: Open, runs: Runs) -> None:
    """Another goes on with what it ran, and with what waited for it."""
    here = await open_process(runs, max_running=1)
    there = await open_process(runs, max_running=1)
    handles = [await here.defer("note", number, delay=1) for number in range(3)]
    await asyncio.sleep(1.5)
    await here.close()
    for handle in handles:
        assert (await there.job(handle.id).wait(1_000)).state is JobState.DONE


async def test_wrong_bounds_are_refused(make_purgatory: Make) -> None:
    """Where they are given, with what to give."""
    purgatory = make_purgatory(jobs=MemoryJobStore())
    values: list[Any] = [0, -1, True, 1.5, "3"]
    for wrong in values:
        with pytest.raises(ValueError, match="give a number of jobs from 1; to run none, pause"):
            purgatory.handler("x", max_running=wrong)(len)
        with pytest.raises(ValueError, match="max_running_per_key of handler 'x'"):
            purgatory.handler("x", max_running_per_key=wrong)(len)
    async with purgatory:
        purgatory.handled_elsewhere(["y"])
        for key in ("", "a\n", "k" * 257):
            with pytest.raises(InvalidKeyError):
                await purgatory.defer("y", delay=1, concurrency_key=key)


jobs = st.lists(
    st.tuples(
        st.integers(0, 3),  # when it is due, in seconds
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 2),  # how long it runs, in seconds
        st.sampled_from(["done", "fail", "again", "retry", "cancel"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(1, 3), st.integers(1, 2), st.sampled_from([0, 2, 30]))
def test_law_bounds_hold_and_all_jobs_end(
    given_jobs: list[tuple[int, str | None, int, str]], total: int, per_key: int, killed_at: int
) -> None:
    """Whatever the jobs do, and though one of two processes ends meanwhile."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(check_bounds(given_jobs, total, per_key, killed_at))


async def check_bounds(
    given_jobs: list[tuple[int, str | None, int, str]], total: int, per_key: int, killed_at: int
) -> None:
    leap(1_800_000_000_000)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    running: list[str | None] = []

    async def handle(job: JobContext, payload: Any) -> Any:
        key, seconds, end = payload
        running.append(key)
        assert len(running) <= total
        assert key is None or running.count(key) <= per_key
        try:
            await asyncio.sleep(seconds)
        finally:
            running.remove(key)
        if end == "fail":
            raise FailJobError("it does")
        if end == "retry" and job.attempt == 1:
            raise ValueError("once")
        return job.again(delay=2) if end == "again" and job.round == 0 else None

    store = MemoryJobStore(now_ms=now_ms)
    await store.open()
    async with AsyncExitStack() as stack:
        processes = []
        for _ in range(2):
            process = Purgatory(
                jobs=SharedStore(store),
                job_settings=worker_settings(),
                clock=loop.clock,
            )
            process.handler("note", max_running=total, max_running_per_key=per_key)(handle)
            processes.append(await stack.enter_async_context(process))
        here, there = processes
        handles = [
            await there.defer("note", [key, s, end], delay=delay, concurrency_key=key)
            for delay, key, s, end in given_jobs
        ]
        await asyncio.sleep(1.5)
        for handle_, given_job in zip(handles, given_jobs, strict=True):
            job = await handle_.get()
            if given_job[3] == "cancel" and job.state is JobState.WAITING:
                await handle_.cancel()
        await asyncio.sleep(killed_at)
        await here.close()
        for handle_ in handles:
            job = await handle_.wait(1_000)
            assert job.placed_ms is None and job.blocked_by is None
