"""Cancelling, rescheduling, listing and awaiting jobs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from purgatory import (
    InvalidKeyError,
    InvalidTimeoutError,
    LimitReachedError,
    Limits,
    Purgatory,
    PurgatoryDrainingError,
)
from purgatory.jobs import (
    FailJobError,
    InvalidJobError,
    Job,
    JobConflictError,
    JobContext,
    JobNotFoundError,
    JobOutcome,
    JobState,
    MemoryJobStore,
)
from purgatory.jobs.job_watchers import JobWait
from tests.promises.kit import Log, now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import SELDOM, Make, on_time

# Changing one's mind


async def test_a_cancelled_job_never_runs(purgatory: Purgatory, log: Log) -> None:
    """In the horizon or beyond; and repeating is safe."""
    near = await purgatory.defer("note", delay=1)
    far = await purgatory.defer("note", delay=100)
    await asyncio.sleep(0.5)
    assert (await near.cancel()).outcome is JobOutcome.CANCELLED
    assert (await purgatory.jobs.cancel(far.id)).state is JobState.CANCELLED
    assert (await near.cancel()).state is JobState.CANCELLED
    await asyncio.sleep(200)
    assert log == []


async def test_rescheduling_moves_the_deadline(purgatory: Purgatory, log: Log) -> None:
    """Forward and back, though the job is held already: a debounce."""
    handle = await purgatory.defer("note", delay=2)
    start_ms = now_ms()
    for _ in range(5):
        await asyncio.sleep(1)
        await purgatory.jobs.reschedule(handle.id, delay=2)
    await handle.wait()
    assert on_time([run.at_ms - start_ms for run in log], [7_000])
    later = await purgatory.defer("note", delay=5_000)
    await purgatory.jobs.reschedule(later.id, delay=1)
    await later.wait(1.5)


# Asking


async def test_waiting_for_a_job(purgatory: Purgatory) -> None:
    """Until it is final, or the time is up; nothing is left behind either way."""
    handle = await purgatory.defer("note", delay=100)
    with pytest.raises(TimeoutError, match="waiting"):
        await handle.wait(5)
    with pytest.raises(TimeoutError):
        await handle.wait(0)
    with pytest.raises(JobNotFoundError):
        await purgatory.job("0" * 32).wait(1)
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)
    assert purgatory.parked == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert purgatory.parked == 0
    assert (await handle.wait()).state is JobState.DONE


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e300])
async def test_a_timeout_that_is_none_is_refused(purgatory: Purgatory, timeout: float) -> None:
    """As where it is parked."""
    handle = await purgatory.defer("note", delay=1)
    with pytest.raises(InvalidTimeoutError, match=r"timeout is .* seconds from 0 to"):
        await handle.wait(timeout)
    with pytest.raises(TypeError, match="give seconds as a number"):
        await handle.wait("5")  # type: ignore[arg-type] # on purpose


async def test_who_stops_waiting_is_not_in_the_way(purgatory: Purgatory) -> None:
    """Of the one who changes the job at that very moment."""
    handle = await purgatory.defer("note", delay=100)
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)
    waiting.cancel()
    # A store in memory lets nobody in between.
    assert (await handle.cancel()).state is JobState.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert purgatory.parked == 0


async def test_waiting_for_a_change(purgatory: Purgatory) -> None:
    """Every version, as it comes."""
    handle = await purgatory.defer("note", delay=100)
    version = (await handle.get()).version
    waiting = asyncio.create_task(handle.wait_changed(version))
    await asyncio.sleep(1)
    await purgatory.jobs.reschedule(handle.id, delay=200)
    job = await waiting
    assert (job.state, job.version) == (JobState.WAITING, version + 1)
    assert (await handle.wait_changed(version)).version == version + 1


async def test_waiting_is_bounded(store: MemoryJobStore, make_purgatory: Make, log: Log) -> None:
    """As all that is parked."""
    purgatory = make_purgatory(jobs=store, limits=Limits(max_parked=1))
    purgatory.handler("note")(log)
    async with purgatory:
        handle = await purgatory.defer("note", delay=100)
        waiting = asyncio.create_task(handle.wait())
        await asyncio.sleep(1)
        with pytest.raises(LimitReachedError):
            await handle.wait()
        assert (await waiting).state is JobState.DONE


async def test_whoever_waits_is_told_when_it_drains(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """The job itself goes on elsewhere."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        handle = await purgatory.defer("note", delay=100)
        waiting = asyncio.create_task(handle.wait())
        await asyncio.sleep(1)
        await purgatory.drain()
        with pytest.raises(PurgatoryDrainingError):
            await waiting
        # It can be asked all the same, until it is closed.
        assert (await handle.get()).lease_until_ms == 0


@pytest.mark.parametrize("state", ["runing", 5, ""])
async def test_listing_jobs_of_no_state(purgatory: Purgatory, state: Any) -> None:
    """It is refused, as an empty page would say that there are none."""
    await purgatory.defer("note", delay=100)
    with pytest.raises(InvalidJobError, match=rf"state is {state!r}: give one of 'waiting', "):
        await purgatory.jobs.list(state=state)
    assert len((await purgatory.jobs.list(state=JobState("waiting"))).jobs) == 1


@pytest.mark.parametrize("name", ["handler", "key", "concurrency_key"])
@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [("", ValueError, "''"), ("a\x01b", ValueError, r"a\\x01b"), (7, TypeError, "7")],
)
async def test_listing_jobs_by_what_none_can_have(
    purgatory: Purgatory, name: str, value: Any, error: type[Exception], shown: str
) -> None:
    """It is refused where it is given, before a store can take it for no condition at all."""
    with pytest.raises(error, match=shown):
        await purgatory.jobs.list(**{name: value})


class OtherProcess(FailingJobStore):
    """Another process on the jobs of a store, which announces nothing to it, as a database."""

    def __init__(self, store: FailingJobStore) -> None:
        super().__init__(now_ms)
        self._store = store
        self.is_telling = False
        self.read_at_ms: list[int] = []

    @property
    def reads(self) -> int:
        return len(self.read_at_ms)

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        self.read_at_ms.append(now_ms())
        return await self._store.get(job_ids)


async def test_a_wait_in_another_process_ends_soon_after_the_job_is_due(
    store: FailingJobStore, purgatory: Purgatory, make_purgatory: Make
) -> None:
    """Where changes are not announced: not a poll of a second later, and for few reads more."""
    other = OtherProcess(store)
    async with make_purgatory(jobs=other) as waiting:
        job = await purgatory.defer("note", delay=2.3)
        start_ms = now_ms()
        found = await waiting.job(job.id).wait(20)
        assert found.state is JobState.DONE
        assert 2_300 <= now_ms() - start_ms <= 2_400
        assert other.reads <= 5


@pytest.mark.parametrize(
    ("is_telling", "wanted_ms"),
    [
        (True, [0, 15_000, 30_000]),
        # Each second until it is due, then after as long again as has passed since.
        (False, [0, 1_000, 2_000, 2_350, 2_400, 2_500, 2_700, 3_100, 3_900, 4_900, 5_900]),
    ],
)
async def test_how_often_an_unchanged_job_is_read(
    store: FailingJobStore, make_purgatory: Make, is_telling: bool, wanted_ms: list[int]
) -> None:
    """Seldom where changes are announced; else also soon after it is due, when most jobs end."""
    async with make_purgatory(jobs=store) as adding:
        adding.handled_elsewhere(["nobody"])
        other = OtherProcess(store)
        other.is_telling = is_telling
        async with make_purgatory(jobs=other) as waiting:
            job = await adding.defer("nobody", delay=2.3)
            start_ms = now_ms()
            with pytest.raises(TimeoutError):
                await waiting.job(job.id).wait(40)
            found_ms = [at_ms - start_ms for at_ms in other.read_at_ms[: len(wanted_ms)]]
            assert found_ms == pytest.approx(wanted_ms, abs=30)


def counted(purgatory: Purgatory) -> dict[str, int]:
    """Return how many operations ended in each way."""
    found = purgatory.statistics()
    names = ("fired", "expired", "cancelled", "drained")
    return {name: count for name in names if (count := getattr(found, name))}


@pytest.mark.parametrize("is_telling", [False, True])
async def test_a_wait_for_a_job_is_one_operation(
    store: FailingJobStore, purgatory: Purgatory, make_purgatory: Make, is_telling: bool
) -> None:
    """However often the job is read meanwhile, and however often it changes."""
    other = OtherProcess(store)
    other.is_telling = is_telling
    async with make_purgatory(jobs=other) as waiting:
        job = await purgatory.defer("note", delay=100)
        with pytest.raises(TimeoutError):
            await waiting.job(job.id).wait(40)
        assert other.reads > 3
        assert counted(waiting) == {"expired": 1}
        ended = asyncio.create_task(waiting.job(job.id).wait())
        for _ in range(3):
            await asyncio.sleep(1)
            await purgatory.jobs.reschedule(job.id, delay=100)
        assert (await ended).state is JobState.DONE
        assert counted(waiting) == {"expired": 1, "fired": 1}


async def test_a_wait_for_a_job_outlasts_its_cancellation(purgatory: Purgatory) -> None:
    """By its key, as of all that waits: the caller has its answer, and nothing stays behind."""
    job = await purgatory.defer("note", delay=100)
    waiting = asyncio.create_task(job.wait())
    await asyncio.sleep(1)
    assert await purgatory.cancel(f"purgatory/jobs/{job.id}") == 1
    await asyncio.sleep(1)
    assert purgatory.parked == 1
    assert (await waiting).state is JobState.DONE
    assert counted(purgatory) == {"cancelled": 1, "fired": 1}
    gc.collect()
    left = [each for each in gc.get_objects() if type(each) is JobWait]
    assert not [wait for wait in left if wait.job_id == job.id]


async def test_a_change_while_a_day_ends_is_noticed_at_once(
    store: FailingJobStore, purgatory: Purgatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is announced to the operation of that day, whose last look does not see it yet."""
    monkeypatch.setattr("purgatory.jobs.job_watchers._UNLIMITED_MS", 1_000)

    async def slow_get(job_ids: Sequence[str]) -> list[Job | None]:
        found = await MemoryJobStore.get(store, job_ids)
        await asyncio.sleep(0.3)
        return found

    job = await purgatory.defer("note", delay=900)
    start_ms = now_ms()
    with monkeypatch.context() as slow:
        slow.setattr(store, "get", slow_get)
        waiting = asyncio.create_task(job.wait())
        await asyncio.sleep(1.4)
    await job.cancel()
    assert (await waiting).state is JobState.CANCELLED
    assert now_ms() - start_ms < 2_000


@SELDOM
async def test_a_wait_without_a_limit_lasts_for_days(purgatory: Purgatory) -> None:
    """It ends with the job, in one operation for each day."""
    job = await purgatory.defer("note", delay=25 * 3600)
    assert (await job.wait()).state is JobState.DONE
    assert counted(purgatory) == {"expired": 1, "fired": 1}


async def test_failed_jobs_are_retried_in_batches(purgatory: Purgatory) -> None:
    """Those that match, each once, though some fail again meanwhile."""
    runs: list[str] = []
    is_broken = True

    @purgatory.handler
    async def work(job: JobContext, name: str) -> None:
        runs.append(name)
        if is_broken:
            raise FailJobError("broken")

    handles = [await purgatory.defer("work", str(number), delay=0) for number in range(25)]
    other = await purgatory.defer("note", delay=900)
    for handle in handles:
        await handle.wait()
    failed = await purgatory.jobs.list(state=JobState.FAILED)
    assert {job.error for job in failed.jobs} == {"FailJobError: broken"}
    runs.clear()
    retried, after, batches = 0, None, 0
    while True:
        page = await purgatory.jobs.retry_all(handler="work", after=after, limit=10)
        await asyncio.sleep(1)
        retried, after, batches = retried + page.retried, page.next, batches + 1
        if after is None:
            break
    assert (retried, batches, sorted(runs)) == (25, 3, sorted(map(str, range(25))))
    is_broken = False
    assert (await purgatory.jobs.retry_all(handler="none")).retried == 0
    job = await purgatory.jobs.retry(handles[0].id)
    assert (job.state, job.attempt) == (JobState.WAITING, 0)
    assert (await handles[0].wait()).state is JobState.DONE
    with pytest.raises(JobConflictError, match="cannot be retried"):
        await purgatory.jobs.retry(handles[0].id)
    assert (await other.get()).is_undecided


async def test_a_paused_handler_runs_nothing(purgatory: Purgatory, log: Log) -> None:
    """Neither what is held already nor what is added; then what was due runs at once."""
    near = await purgatory.defer("note", "near", delay=2)
    far = await purgatory.defer("note", "far", delay=300)
    await asyncio.sleep(1)
    await purgatory.jobs.pause("note")
    late = await purgatory.defer("note", "late", delay=0)
    await asyncio.sleep(60)
    assert log == []
    paused = await purgatory.jobs.paused()
    assert (paused.handlers, paused.is_all, paused.jobs) == (("note",), False, 2)
    statistics = purgatory.statistics().jobs
    assert statistics is not None and statistics.running == 0
    before_ms = now_ms()
    assert await purgatory.jobs.resume("note") == 2
    await near.wait(1)
    await late.wait(1)
    assert {run.payload for run in log} == {"near", "late"}
    assert all(0 <= run.at_ms - before_ms <= 2 for run in log)
    assert (await purgatory.jobs.resume(), (await purgatory.jobs.paused()).jobs) == (0, 0)
    await far.wait()


async def test_all_handlers_are_paused(purgatory: Purgatory, log: Log) -> None:
    """Any number of jobs that are due: they cost a claim each, and run afterwards."""
    await purgatory.jobs.pause()
    specs = [purgatory.jobs.spec("note", delay=0) for _ in range(2_000)]
    await purgatory.jobs.add(specs)
    await asyncio.sleep(60)
    assert log == [] and (await purgatory.jobs.paused()).jobs == 2_000
    assert await purgatory.jobs.resume() == 2_000
    await asyncio.sleep(60)
    assert len(log) == 2_000


async def test_a_handler_that_no_job_can_have_is_not_paused(purgatory: Purgatory) -> None:
    """It is an error of the caller's, which would go unseen."""
    for name in ("", "a\n", "a" * 257):
        with pytest.raises(InvalidKeyError):
            await purgatory.jobs.pause(name)
        with pytest.raises(InvalidKeyError):
            await purgatory.jobs.cancel_for_key(name)
    assert (await purgatory.jobs.paused()).handlers == ()


async def test_a_timeout_is_not_late_by_a_tick(purgatory: Purgatory) -> None:
    """It ends in the millisecond in which it is over."""
    handle = await purgatory.defer("note", delay=60)
    await asyncio.sleep(1)
    began_ms = now_ms()
    with pytest.raises(TimeoutError, match=r"still waiting after 0\.5 seconds"):
        await handle.wait(0.5)
    assert 500 <= now_ms() - began_ms <= 501
