"""Draining and closing a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from purgatory import PurgatoryClosedError
from purgatory.jobs import JobContext, JobState, MemoryJobStore, WorkerSettings
from purgatory.jobs.stores.protocol import StoreListener
from tests.promises.kit import Log, now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Make, on_time


async def test_handlers_have_a_grace_time(store: MemoryJobStore, make_purgatory: Make) -> None:
    """Those that end within it are done; the others are cancelled, and run again elsewhere."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace_ms=5_000))

    @purgatory.handler("sleep")
    async def sleep(job: JobContext, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with purgatory:
        short = await purgatory.defer("sleep", 3.0, delay=0)
        long = await purgatory.defer("sleep", 30.0, delay=0)
        await asyncio.sleep(1)
        before_ms = now_ms()
        await purgatory.drain()
        assert on_time([now_ms()], [before_ms + 5_000])
        assert (await short.get()).state is JobState.DONE
        job = await long.get()
        assert (job.state, job.attempt, job.lease_until_ms) == (JobState.WAITING, 1, 0)


async def test_a_handler_that_cannot_be_cancelled_is_left_behind(
    store: FailingJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it takes its cancellation for: nobody waits for it, and the others go back."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace_ms=5_000))
    may_end = asyncio.Event()

    @purgatory.handler("stubborn")
    async def stubborn(job: JobContext) -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    @purgatory.handler("slow")
    async def slow(job: JobContext) -> None:
        await asyncio.sleep(100)

    async with purgatory:
        left, given_back = [await purgatory.defer(name, delay=0) for name in ("stubborn", "slow")]
        await asyncio.sleep(1)
        before_ms = now_ms()
        await purgatory.drain()
        assert on_time([now_ms()], [before_ms + 7_000])
        assert f"job {left.id} was cancelled" in caplog.text
        assert (await given_back.get()).state is JobState.WAITING
        job = await left.get()
        assert job.state is JobState.RUNNING and job.lease_until_ms > now_ms()
        may_end.set()
        await asyncio.sleep(1)
        # Nobody else had it yet.
        assert (await left.get()).state is JobState.DONE


@pytest.mark.parametrize(("delay", "wanted_ms"), [(100, 0), (0, 5_000)])
async def test_draining_does_not_wait_for_the_end_of_an_outage(
    store: FailingJobStore, make_purgatory: Make, delay: int, wanted_ms: int
) -> None:
    """What was run has its grace time to be told; else there is nothing to wait for."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace_ms=5_000))

    @purgatory.handler("note")
    async def cut(job: JobContext) -> None:
        store.is_down = True

    async with purgatory:
        await purgatory.defer("note", delay=delay)
        await asyncio.sleep(1)
        store.is_down = True
        await asyncio.sleep(30)
        before_ms = now_ms()
        await purgatory.drain()
        assert on_time([now_ms()], [before_ms + wanted_ms])


async def test_a_start_that_is_drained_ends(make_purgatory: Make) -> None:
    """Though the store hangs: whoever opened it is told, and nothing is left open."""

    class Hanging(MemoryJobStore):
        async def open(self) -> None:
            await asyncio.Event().wait()

    purgatory = make_purgatory(jobs=Hanging())
    opening = asyncio.create_task(purgatory.__aenter__())
    await asyncio.sleep(1)
    await purgatory.drain()
    with pytest.raises(PurgatoryClosedError):
        await opening
    assert not purgatory.is_open


async def test_a_handler_that_cannot_be_closed_keeps_nothing_open(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """The others are closed, and so is the store; whoever closes is told of it."""
    closed = []

    class Client:
        def __init__(self, error: Exception | None) -> None:
            self._error = error

        async def __call__(self, job: JobContext) -> None: ...

        async def aclose(self) -> None:
            closed.append(self)
            if self._error is not None:
                raise self._error

    purgatory = make_purgatory(jobs=store)
    purgatory.handler("bad")(Client(OSError("it does not close")))
    purgatory.handler("good")(Client(None))
    await purgatory.__aenter__()
    with pytest.raises(OSError, match="it does not close"):
        await purgatory.close()
    assert len(closed) == 2
    with pytest.raises(PurgatoryClosedError):
        await store.counts()


@pytest.mark.parametrize("seconds", [0, 0.5, 2])
async def test_a_close_that_is_cancelled_goes_on(
    store: FailingJobStore, make_purgatory: Make, seconds: float
) -> None:
    """While a handler ends, while another is closed: the store is closed when they are done."""

    class Slow:
        async def __call__(self, job: JobContext) -> None:
            await asyncio.sleep(1)

        async def aclose(self) -> None:
            await asyncio.sleep(2)

    purgatory = make_purgatory(jobs=store)
    purgatory.handler("slow")(Slow())
    await purgatory.__aenter__()
    job = await purgatory.defer("slow", delay=0)
    await job.wait_changed(1, 10)
    closing = asyncio.create_task(purgatory.close())
    await asyncio.sleep(seconds)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert purgatory.is_draining
    assert (await store.get([job.id]))[0] is not None
    await asyncio.sleep(4)
    assert not purgatory.is_open
    with pytest.raises(PurgatoryClosedError):
        await store.counts()


async def test_a_loop_that_ends_closes_the_store(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """It cancels whoever closes it, too."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("slow")
    async def slow(job: JobContext) -> None:
        await asyncio.sleep(1)

    await purgatory.__aenter__()
    job = await purgatory.defer("slow", delay=0)
    await job.wait_changed(1, 10)
    before = asyncio.all_tasks()
    closing = asyncio.create_task(purgatory.close())
    await asyncio.sleep(0.5)
    ours = {closing} | (asyncio.all_tasks() - before)
    for task in ours:
        task.cancel()
    await asyncio.gather(*ours, return_exceptions=True)
    with pytest.raises(PurgatoryClosedError):
        await store.counts()


async def test_a_close_whose_drain_is_cancelled_drains_before_the_store_is_closed(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """What runs is done, and what is held goes back, though nobody waits for the drain any more."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)

    @purgatory.handler("slow")
    async def slow(job: JobContext) -> None:
        await asyncio.sleep(2)

    await purgatory.__aenter__()
    running = await purgatory.defer("slow", delay=0)
    held = await purgatory.defer("note", delay=30)
    await asyncio.sleep(1)
    assert (await held.get()).lease_until_ms > 0
    closing = asyncio.create_task(purgatory.close())
    await asyncio.sleep(0.5)
    [inner] = [task for task in asyncio.all_tasks() if task.get_name() == "purgatory-close"]
    inner.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    # The jobs are still there for whoever opens it next.
    await store.open()
    [done, waiting] = await store.get([running.id, held.id])
    assert done is not None and done.state is JobState.DONE
    assert waiting is not None
    assert (waiting.state, waiting.lease_until_ms) == (JobState.WAITING, 0)


async def test_a_purgatory_that_is_closed_gives_no_handle(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Before it is open, and after: where it is asked for, not where the job is."""
    purgatory = make_purgatory(jobs=store)
    for _ in range(2):
        with pytest.raises(PurgatoryClosedError):
            purgatory.job("0" * 32)
        async with purgatory:
            assert purgatory.job("0" * 32).id == "0" * 32


async def test_a_store_that_outlives_its_purgatory_tells_it_nothing(
    store: FailingJobStore, make_purgatory: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is closed, which its statistics say."""
    listeners: list[object] = []
    subscribe = store.subscribe

    def noted(listener: StoreListener) -> Callable[[], None]:
        end = subscribe(listener)
        listeners.append(listener)

        def end_noted() -> None:
            end()
            listeners.remove(listener)

        return end_noted

    monkeypatch.setattr(store, "subscribe", noted)
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        assert listeners
    assert listeners == []
    statistics = purgatory.statistics().jobs
    assert statistics is not None and statistics.store_error == "it is closed"
