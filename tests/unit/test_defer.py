"""Delayed jobs in one process, on a clock that jumps."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from purgatory import (
    InvalidKeyError,
    InvalidTimeoutError,
    LimitReachedError,
    Limits,
    Purgatory,
    PurgatoryClosedError,
    PurgatoryDrainingError,
)
from purgatory.jobs import (
    AddStatus,
    Claimed,
    DuplicateJobError,
    FailJobError,
    InvalidDeadlineError,
    InvalidJobError,
    InvalidPayloadError,
    Job,
    JobConflictError,
    JobContext,
    JobLimits,
    JobNotFoundError,
    JobOutcome,
    JobResult,
    JobReturn,
    JobsNotFiredError,
    JobState,
    MemoryJobStore,
    NoJobStoreError,
    RetryJobError,
    RetryPolicy,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnknownHandlerError,
    WorkerSettings,
)
from purgatory.testing import AutojumpEventLoop
from tests.unit.failing_job_store import FailingJobStore

Make = Callable[..., Purgatory]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time jumps to the next timer."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


def now_ms() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    return loop.clock.wall_ms()


def leap(ms: int) -> None:
    """The wall clock of the store goes on by that much, and nothing else does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    loop.clock.set_wall(now_ms() + ms)


@pytest.fixture
async def store() -> FailingJobStore:
    """The store, by the wall clock of the loop."""
    leap(1_800_000_000_000)
    return FailingJobStore(now_ms)


def on_time(at_ms: list[int], wanted_ms: list[int]) -> bool:
    """Never early, and late by no more than two roundings up to a millisecond."""
    return len(at_ms) == len(wanted_ms) and all(
        0 <= at - wanted <= 2 for at, wanted in zip(at_ms, wanted_ms, strict=True)
    )


@dataclass
class Run:
    """One call of a handler."""

    at_ms: int
    job: JobContext
    payload: Any


class Log(list[Run]):
    """Notes every run."""

    async def __call__(self, job: JobContext, payload: Any) -> None:
        self.append(Run(now_ms(), job, payload))


@pytest.fixture
def log() -> Log:
    """What was run."""
    return Log()


@pytest.fixture
async def purgatory(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> AsyncIterator[Purgatory]:
    """An open purgatory with a handler called "note"."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        yield purgatory


# When it runs


async def test_a_job_runs_at_its_deadline(purgatory: Purgatory, log: Log) -> None:
    """Never early, with its payload, and the outcome is recorded."""
    before_ms = now_ms()
    handle = await purgatory.defer("note", {"n": 1}, delay=900)
    job = await handle.wait()
    assert (job.state, job.outcome, job.attempt) == (JobState.DONE, JobOutcome.EXPIRED, 1)
    [run] = log
    assert on_time([run.at_ms], [before_ms + 900_000])
    assert run.payload == {"n": 1}
    assert (run.job.id, run.job.attempt, run.job.max_attempts) == (handle.id, 1, 10)
    assert (run.job.outcome, run.job.fired_key) == (JobOutcome.EXPIRED, None)
    assert run.job.deadline - run.job.created == timedelta(seconds=900)
    assert job.lateness_ms is not None and job.lateness_ms <= 2


@pytest.mark.parametrize("delay", [0, 0.001, 1, 59, 60, 61, 3_600, 24 * 3_600])
async def test_near_and_far_deadlines(purgatory: Purgatory, log: Log, delay: float) -> None:
    """On time, in the horizon and beyond it."""
    at_ms = now_ms() + round(delay * 1000)
    await (await purgatory.defer("note", delay=delay)).wait()
    assert on_time([run.at_ms for run in log], [at_ms])


async def test_a_moment_is_a_deadline_too(purgatory: Purgatory, log: Log) -> None:
    """In whatever zone it is."""
    at_ms = now_ms() + 90_000
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    await (await purgatory.defer("note", at=at)).wait()
    assert on_time([run.at_ms for run in log], [at_ms])


async def test_a_fire_runs_a_job_at_once(purgatory: Purgatory, log: Log) -> None:
    """The handler is told which key fired and with what; the deadline does nothing more."""
    handle = await purgatory.defer("note", delay=900, keys=["a", "b"])
    await asyncio.sleep(1)
    before_ms = now_ms()
    fired = await purgatory.fire("b", {"by": "card"})
    assert (fired.jobs, fired.completed) == (1, 0)
    job = await handle.wait(1)
    assert (job.state, job.outcome) == (JobState.DONE, JobOutcome.FIRED)
    [run] = log
    assert on_time([run.at_ms], [before_ms])
    assert (run.job.fired_key, run.job.fired_value) == ("b", {"by": "card"})
    assert (await purgatory.fire("a")).jobs == 0
    await asyncio.sleep(1_000)
    assert len(log) == 1


async def test_a_fire_cancels_a_job_that_wants_it(purgatory: Purgatory, log: Log) -> None:
    """on_fire="cancel": not at all because it fired."""
    handle = await purgatory.defer("note", delay=900, keys=["paid"], on_fire="cancel")
    assert (await purgatory.fire("paid", 7)).jobs == 1
    job = await handle.get()
    assert (job.state, job.outcome, job.fired_value) == (JobState.CANCELLED, JobOutcome.FIRED, 7)
    await asyncio.sleep(1_000)
    assert log == []


async def test_a_fire_decides_more_jobs_than_a_step_takes(
    purgatory: Purgatory, store: MemoryJobStore
) -> None:
    """All of them, in several steps, though the caller is cancelled."""
    specs = [
        purgatory.job_spec("note", delay=900, keys=["k"], on_fire="cancel") for _ in range(2_500)
    ]
    await store.add(specs)
    assert (await purgatory.fire("k")).jobs == 2_500
    assert (await purgatory.job_counts()).cancelled == 2_500


async def test_a_fire_without_jobs_does_not_ask_the_store(
    purgatory: Purgatory, store: FailingJobStore
) -> None:
    """It costs what it cost before there were jobs."""
    await purgatory.defer("note", delay=900, keys=["a"])
    before = store.asked
    await purgatory.fire("b")
    assert store.asked == before


async def test_many_jobs_run_in_order_of_deadline(purgatory: Purgatory, log: Log) -> None:
    """However they were deferred."""
    for n in (5, 1, 4, 2, 3):
        await purgatory.defer("note", n, delay=n)
    await asyncio.sleep(10)
    assert [run.payload for run in log] == [1, 2, 3, 4, 5]


async def test_what_is_held_is_bounded(store: MemoryJobStore, make_purgatory: Make) -> None:
    """However many are due; those deferred later and due sooner are not late for it."""
    settings = WorkerSettings(max_held=20, max_running=3)
    purgatory = make_purgatory(jobs=store, job_settings=settings)
    running = most = 0
    ended: list[tuple[int, int]] = []

    @purgatory.handler("work")
    async def work(job: JobContext, number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        ended.append((number, now_ms()))

    async with purgatory:
        for number in range(200):
            await purgatory.defer("work", number, delay=30)
        await asyncio.sleep(1)
        held = purgatory.statistics().jobs
        assert held is not None and held.held == 20
        at_ms = now_ms() + 2_000
        await (await purgatory.defer("work", -1, delay=2)).wait()
        [(number, ended_ms)] = ended
        assert number == -1 and on_time([ended_ms - 10], [at_ms])
        await asyncio.sleep(60)
        assert sorted(number for number, _ in ended) == list(range(-1, 200))
        assert most == 3


# Retries


def settings(**options: Any) -> WorkerSettings:
    return WorkerSettings(retry=RetryPolicy(first_ms=1_000, most_ms=8_000), **options)


async def test_what_fails_is_tried_again(store: MemoryJobStore, make_purgatory: Make) -> None:
    """With backoff and full jitter, up to max_attempts; then it is failed, with the error."""
    purgatory = make_purgatory(jobs=store, job_settings=settings())
    attempts: list[tuple[int, int]] = []

    @purgatory.handler("fail")
    async def fail(job: JobContext) -> None:
        attempts.append((job.attempt, now_ms()))
        raise ValueError(f"no {job.attempt}")

    async with purgatory:
        handle = await purgatory.defer("fail", delay=1, max_attempts=6)
        job = await handle.wait()
    assert (job.state, job.outcome, job.attempt) == (JobState.FAILED, JobOutcome.EXPIRED, 6)
    assert job.error == "ValueError: no 6"
    assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4, 5, 6]
    pauses = [later - sooner for (_, sooner), (_, later) in pairwise(attempts)]
    for pause_ms, most_ms in zip(pauses, [1_000, 2_000, 4_000, 8_000, 8_000], strict=True):
        assert 0 <= pause_ms <= most_ms + 2


async def test_what_succeeds_in_the_end_is_done(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """And the job still says what went wrong before."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("twice")
    async def twice(job: JobContext) -> None:
        if job.attempt == 1:
            raise KeyError("first")

    async with purgatory:
        job = await (await purgatory.defer("twice", delay=1)).wait()
    assert (job.state, job.attempt, job.error) == (JobState.DONE, 2, "KeyError: 'first'")


async def test_a_handler_says_when_to_try_again(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """RetryJobError(after=) is that, and FailJobError is never."""
    purgatory = make_purgatory(jobs=store)
    at_ms: list[int] = []

    @purgatory.handler("later")
    async def later(job: JobContext) -> None:
        at_ms.append(now_ms())
        if job.attempt == 1:
            raise RetryJobError("busy", after=123.456)
        raise FailJobError("gone")

    async with purgatory:
        job = await (await purgatory.defer("later", delay=1)).wait()
    assert on_time(at_ms[1:], [at_ms[0] + 123_456])
    assert (job.state, job.attempt, job.error) == (JobState.FAILED, 2, "FailJobError: gone")


async def test_a_cancellation_in_a_handler_is_a_failure(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """What it awaits may be cancelled; that is no order to us."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("odd")
    async def odd(job: JobContext) -> None:
        raise asyncio.CancelledError

    async with purgatory:
        job = await (await purgatory.defer("odd", delay=1, max_attempts=2)).wait()
    assert (job.state, job.attempt, job.error) == (JobState.FAILED, 2, "CancelledError")


class Unprintable(Exception):
    """It cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abort(BaseException):
    """What test frameworks and others stop with."""


@pytest.mark.parametrize(
    ("make_error", "said"),
    [
        (lambda: Abort("stop"), "Abort: stop"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (Unprintable, "Unprintable: <exception str() failed>"),
        (lambda: RetryJobError(after=float("nan")), "ValueError: after is NaN"),
        (lambda: RetryJobError(after="30"), "TypeError: after is '30'"),  # type: ignore[arg-type] # on purpose
    ],
)
async def test_whatever_a_handler_raises_is_a_failure(
    store: MemoryJobStore,
    make_purgatory: Make,
    make_error: Callable[[], BaseException],
    said: str,
) -> None:
    """It is tried again with a backoff, and then failed; nothing holds the job for ever."""
    purgatory = make_purgatory(jobs=store)
    attempts = []

    @purgatory.handler("odd")
    async def odd(job: JobContext) -> None:
        attempts.append(job.attempt)
        raise make_error()

    async with purgatory:
        job = await (await purgatory.defer("odd", delay=1, max_attempts=2)).wait(10)
        statistics = purgatory.statistics().jobs
    assert (job.state, attempts) == (JobState.FAILED, [1, 2])
    assert job.error is not None and job.error.startswith(said)
    assert statistics is not None and statistics.held == 0


# Handlers and payloads


async def test_what_returns_a_coroutine_is_run_to_its_end(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """A lambda or a partial around an async function does not show that it is one."""

    async def note(log: Log, job: JobContext, payload: str) -> None:
        await log(job, payload)

    purgatory = make_purgatory(jobs=store)
    purgatory.handler("lambda")(lambda job, payload: note(log, job, payload))
    purgatory.handler("partial")(partial(note, log))
    async with purgatory:
        for name in ("lambda", "partial"):
            handle = await purgatory.defer(name, name, delay=0)
            while not (await handle.get()).state.is_final:
                # Real time: a thread is not on the virtual clock.
                await asyncio.to_thread(threading.Event().wait, 0.001)
            assert (await handle.get()).state is JobState.DONE
    assert [run.payload for run in log] == ["lambda", "partial"]
    with pytest.raises(InvalidPayloadError, match="takes str"):
        purgatory.handlers.payload_of("partial").encode(7, 100)


async def test_a_sync_handler_runs_in_a_thread(store: MemoryJobStore, make_purgatory: Make) -> None:
    """Not on the event loop's."""
    purgatory = make_purgatory(jobs=store)
    threads: list[int] = []

    @purgatory.handler("sync")
    def sync(job: JobContext, payload: str) -> None:
        threads.append(threading.get_ident())
        assert payload == "x"

    async with purgatory:
        handle = await purgatory.defer("sync", "x", delay=0)
        job = await handle.get()
        while not job.state.is_final:
            # Real time: the thread is not on the virtual clock.
            await asyncio.to_thread(threading.Event().wait, 0.001)
            job = await handle.get()
    assert job.state is JobState.DONE
    assert threads and threads[0] != threading.get_ident()


async def test_an_unknown_handler_is_refused(purgatory: Purgatory) -> None:
    """With the names that are known; unless it is said that another service has it."""
    with pytest.raises(UnknownHandlerError, match=r"'nope'.*known: 'note'.*handled_elsewhere"):
        await purgatory.defer("nope", delay=1)
    purgatory.handled_elsewhere(["nope"])
    handle = await purgatory.defer("nope", delay=1)
    assert (await handle.get()).state is JobState.WAITING


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidDeadlineError),
        ({"delay": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}, InvalidDeadlineError),
        ({"delay": -1}, InvalidDeadlineError),
        ({"delay": float("nan")}, InvalidDeadlineError),
        ({"delay": float("inf")}, InvalidDeadlineError),
        ({"delay": 11 * 366 * 24 * 3600}, InvalidDeadlineError),
        ({"at": datetime(2026, 1, 1)}, InvalidDeadlineError),
        ({"at": datetime(2001, 1, 1, tzinfo=UTC)}, InvalidDeadlineError),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, InvalidDeadlineError),
        ({"delay": "1"}, TypeError),
        ({"delay": True}, TypeError),
        ({"at": "2026-01-01"}, TypeError),
        ({"delay": 1, "payload": {1, 2}}, InvalidPayloadError),
        ({"delay": 1, "payload": float("nan")}, InvalidPayloadError),
        ({"delay": 1, "payload": "x" * 65_536}, InvalidPayloadError),
        ({"delay": 1, "keys": "paid"}, TypeError),
        ({"delay": 1, "keys": [""]}, InvalidKeyError),
        ({"delay": 1, "keys": ["a\x00"]}, InvalidKeyError),
        ({"delay": 1, "keys": [str(n) for n in range(101)]}, InvalidJobError),
        ({"delay": 1, "on_fire": "explode"}, InvalidJobError),
        ({"delay": 1, "misfire": "later"}, InvalidJobError),
        ({"delay": 1, "on_conflict": "fight"}, InvalidJobError),
        ({"delay": 1, "on_conflict": "keep"}, InvalidJobError),
        ({"delay": 1, "at": datetime(2126, 1, 1, tzinfo=UTC)}, InvalidDeadlineError),
        ({"delay": 1, "max_attempts": 0}, InvalidJobError),
        ({"delay": 1, "max_attempts": 1_001}, InvalidJobError),
        ({"delay": 1, "max_attempts": 1.5}, TypeError),
        ({"delay": 1, "ceiling": -1}, InvalidDeadlineError),
        ({"delay": 1, "dedupe_key": ""}, InvalidKeyError),
    ],
)
async def test_what_makes_no_sense_is_refused(
    purgatory: Purgatory, options: dict[str, Any], error: type[Exception]
) -> None:
    """At once, and nothing is stored."""
    with pytest.raises(error):
        await purgatory.defer("note", **options)
    assert (await purgatory.jobs()).jobs == []


async def test_without_a_store_nothing_can_be_deferred(make_purgatory: Make) -> None:
    """And it is said what to do."""
    async with make_purgatory() as purgatory:
        with pytest.raises(NoJobStoreError, match="Purgatory\\(jobs="):
            await purgatory.defer("note", delay=1)
        assert purgatory.missing == []


# Changing one's mind


async def test_a_cancelled_job_never_runs(purgatory: Purgatory, log: Log) -> None:
    """In the horizon or beyond; and repeating is safe."""
    near = await purgatory.defer("note", delay=1)
    far = await purgatory.defer("note", delay=100)
    await asyncio.sleep(0.5)
    assert (await near.cancel()).outcome is JobOutcome.CANCELLED
    assert (await purgatory.cancel_job(far.id)).state is JobState.CANCELLED
    assert (await near.cancel()).state is JobState.CANCELLED
    await asyncio.sleep(200)
    assert log == []


async def test_cancelling_all_on_a_key(purgatory: Purgatory, log: Log) -> None:
    """Those that were not decided."""
    for _ in range(3):
        await purgatory.defer("note", delay=5, keys=["k"])
    await purgatory.defer("note", delay=5, keys=["other"])
    assert await purgatory.cancel_jobs_for_key("k") == 3
    await asyncio.sleep(10)
    assert len(log) == 1


async def test_rescheduling_moves_the_deadline(purgatory: Purgatory, log: Log) -> None:
    """Forward and back, though the job is held already: a debounce."""
    handle = await purgatory.defer("note", delay=2)
    start_ms = now_ms()
    for _ in range(5):
        await asyncio.sleep(1)
        await purgatory.reschedule(handle.id, delay=2)
    await handle.wait()
    assert on_time([run.at_ms - start_ms for run in log], [7_000])
    later = await purgatory.defer("note", delay=5_000)
    await purgatory.reschedule(later.id, delay=1)
    await later.wait(1.5)


async def test_a_debounce_has_a_ceiling(purgatory: Purgatory, log: Log) -> None:
    """However often it is put off."""
    start_ms = now_ms()
    handle = await purgatory.defer("note", delay=2, ceiling=5)
    for _ in range(4):
        await asyncio.sleep(1)
        await purgatory.reschedule(handle.id, delay=2)
    await handle.wait()
    assert on_time([run.at_ms - start_ms for run in log], [5_000])


async def test_run_now(purgatory: Purgatory, log: Log) -> None:
    """It does not wait for its deadline."""
    handle = await purgatory.defer("note", delay=5_000)
    await purgatory.run_now(handle.id)
    assert (await handle.wait(1)).outcome is JobOutcome.EXPIRED
    with pytest.raises(JobConflictError):
        await purgatory.run_now(handle.id)
    assert len(log) == 1


async def test_one_job_for_each_dedupe_key(purgatory: Purgatory) -> None:
    """error, replace and keep."""
    first = await purgatory.defer("note", 1, delay=10, dedupe_key="d")
    with pytest.raises(DuplicateJobError) as caught:
        await purgatory.defer("note", 2, delay=10, dedupe_key="d")
    assert caught.value.job.id == first.id
    kept = await purgatory.defer("note", 3, delay=10, dedupe_key="d", on_conflict="keep")
    new = await purgatory.defer("note", 4, delay=10, dedupe_key="d", on_conflict="replace")
    assert kept.id == new.id == first.id
    assert kept.added is not None and kept.added.status is AddStatus.KEPT
    assert new.added is not None and new.added.status is AddStatus.REPLACED
    assert (await new.get()).payload == 4


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
    with pytest.raises(InvalidTimeoutError, match=r"timeout is .*, or None"):
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
    await purgatory.reschedule(handle.id, delay=200)
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


async def test_listing_jobs(purgatory: Purgatory) -> None:
    """By state, handler and key, page by page."""
    purgatory.handled_elsewhere(["other"])
    for number in range(5):
        await purgatory.defer("note", number, delay=100, keys=[f"k{number % 2}"])
    await purgatory.defer("other", delay=100)
    assert len((await purgatory.jobs(handler="note")).jobs) == 5
    assert len((await purgatory.jobs(key="k1")).jobs) == 2
    assert (await purgatory.jobs(state=JobState.DONE)).jobs == []
    found: list[Job] = []
    after = None
    while True:
        page = await purgatory.jobs(limit=4, after=after)
        found += page.jobs
        after = page.next
        if after is None:
            break
    assert len({job.id for job in found}) == len(found) == 6
    with pytest.raises(ValueError, match="limit"):
        await purgatory.jobs(limit=0)


# Several lives


async def crash(purgatory: Purgatory, store: MemoryJobStore) -> None:
    """End a purgatory as kill -9 does: what it holds stays held."""
    desk = purgatory._desk
    assert desk is not None
    desk._scheduler._leased.take_all()
    await purgatory.close()
    await store.open()


async def test_after_a_crash_everything_runs(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """What it held runs once its leases have run out; the rest on time."""
    first = make_purgatory(jobs=store)
    first.handler("note")(log)
    await first.__aenter__()
    near = await first.defer("note", "near", delay=50)
    far = await first.defer("note", "far", delay=500)
    await asyncio.sleep(1)
    await crash(first, store)
    assert [job and job.lease_until_ms > 0 for job in await store.get([near.id, far.id])] == [
        True,
        False,
    ]
    second = make_purgatory(jobs=store)
    second.handler("note")(log)
    async with second:
        await asyncio.sleep(600)
        assert [run.payload for run in log] == ["near", "far"]
        deadlines_ms = [round(run.job.deadline.timestamp() * 1000) for run in log]
        assert on_time([run.at_ms for run in log], deadlines_ms)


async def test_a_run_that_was_cut_off_is_run_again(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """At least once: attempt 2, the same id, and one outcome."""
    attempts: list[int] = []

    async def slow(job: JobContext) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            await asyncio.sleep(1_000)

    first = make_purgatory(jobs=store, job_settings=WorkerSettings(grace=0))
    first.handler("slow")(slow)
    await first.__aenter__()
    job_id = (await first.defer("slow", delay=1)).id
    await asyncio.sleep(2)
    await crash(first, store)
    second = make_purgatory(jobs=store)
    second.handler("slow")(slow)
    async with second:
        job = await second.job(job_id).wait()
    assert attempts == [1, 2]
    assert (job.state, job.attempt) == (JobState.DONE, 2)


async def killer_of_workers(store: MemoryJobStore, purgatory: Purgatory) -> str:
    """Add a job of two attempts that twelve workers have died of; return its id."""
    await store.open()
    async with purgatory:
        spec = purgatory.job_spec("note", delay=0, max_attempts=2)
        await purgatory.drain()
        await store.add([spec])
        for _ in range(12):
            [job] = (await store.claim("w", within_ms=0, limit=1, lease_ms=1)).jobs
            await store.start([job.claim], lease_ms=1)
            await asyncio.sleep(0.01)
    return spec.id


async def test_a_job_that_kills_its_workers_is_given_up(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """After max_attempts + max_lost_attempts starts nobody is risked any more."""
    purgatory, second = make_purgatory(jobs=store), make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    second.handler("note")(log)
    job_id = await killer_of_workers(store, purgatory)
    async with second:
        job = await second.job(job_id).wait()
        statistics = second.statistics().jobs
    assert (job.state, job.attempt) == (JobState.FAILED, 12)
    assert job.error is not None and "never reported back" in job.error
    assert statistics is not None and statistics.failed == 1
    assert log == []


async def test_what_another_worker_has_taken_is_not_given_up(
    store: MemoryJobStore,
    make_purgatory: Make,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is neither counted nor called failed."""
    purgatory, second = make_purgatory(jobs=store), make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    second.handler("note")(log)
    job_id = await killer_of_workers(store, purgatory)
    finish = store.finish

    async def finish_too_late(results: Sequence[JobResult]) -> list[bool]:
        if results[0].state is JobState.FAILED:
            await store.give_back([JobReturn(result.claim) for result in results])
        return await finish(results)

    monkeypatch.setattr(store, "finish", finish_too_late)
    async with second:
        job = await second.job(job_id).wait()
        statistics = second.statistics().jobs
    assert (job.state, job.attempt) == (JobState.DONE, 13)
    assert statistics is not None and (statistics.failed, statistics.done) == (0, 1)
    assert "never ended" not in caplog.text


@pytest.mark.parametrize("misfire", ["run", "skip", "spread"])
async def test_what_was_due_while_nobody_ran(
    store: MemoryJobStore, make_purgatory: Make, log: Log, misfire: Any
) -> None:
    """It runs at once, not at all, or a little later; as the job has it."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        ids = [
            (await before.defer("note", delay=10, misfire=misfire, keys=["k"])).id
            for _ in range(20)
        ]
    leap(3_600_000)
    start_ms = now_ms()
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(100)
        jobs = [job for job in await store.get(ids) if job is not None]
        statistics = after.statistics().jobs
        assert statistics is not None
        recovery = statistics.recovery
    assert recovery.is_finished and recovery.overdue >= 20
    if misfire == "skip":
        assert log == []
        assert {(job.state, job.outcome) for job in jobs} == {
            (JobState.CANCELLED, JobOutcome.MISSED)
        }
        assert recovery.missed == 20
        return
    assert {(job.state, job.outcome) for job in jobs} == {(JobState.DONE, JobOutcome.EXPIRED)}
    lateness = sorted(run.at_ms - start_ms for run in log)
    if misfire == "run":
        assert on_time(lateness, [0] * 20)
    else:
        assert recovery.spread == 20
        assert 0 <= lateness[0] < lateness[-1] <= 60_000


@pytest.mark.parametrize("misfire", ["skip", "spread"])
async def test_what_others_decided_meanwhile_is_not_counted(
    store: MemoryJobStore, make_purgatory: Make, log: Log, misfire: Any
) -> None:
    """Only what the store has acknowledged; and jobs for others are not taken up."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note", "other"])
        for handler in ("note", "other"):
            for _ in range(3):
                await before.defer(handler, delay=1, misfire=misfire)
    leap(3_600_000)
    claim = store.claim

    async def claim_and_be_robbed(worker: str, **options: int) -> Claimed:
        claimed = await claim(worker, **options)
        for job in {job.handler: job for job in claimed.jobs}.values():
            await store.cancel(job.id)
        return claimed

    store.claim = claim_and_be_robbed  # type: ignore[method-assign] # somebody is faster
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(0.1)
        statistics = after.statistics().jobs
    assert statistics is not None
    recovery = statistics.recovery
    assert (recovery.overdue, statistics.given_back) == (3, 2)
    assert (recovery.missed, recovery.spread) == ((2, 0) if misfire == "skip" else (0, 2))


async def test_a_job_that_fired_while_nobody_ran_is_not_missed(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """It was decided, and runs."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        await before.defer("note", delay=10, misfire="skip", keys=["k"])
        await before.fire("k", 1)
    leap(3_600_000)
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(1)
    assert [run.job.outcome for run in log] == [JobOutcome.FIRED]


async def test_two_workers_share_the_work(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """Each job runs once, whoever has it."""
    one, two = make_purgatory(jobs=store), make_purgatory(jobs=store)
    for purgatory in (one, two):
        purgatory.handler("note")(log)
    async with one, two:
        for number in range(50):
            await one.defer("note", number, delay=number % 7)
        await asyncio.sleep(10)
        assert sorted(run.payload for run in log) == list(range(50))
        await one.close()
        await store.open()


def make_without(make_purgatory: Make, store: MemoryJobStore) -> Purgatory:
    """A process that leaves "note" to others, and claims as it has another handler."""
    without = make_purgatory(jobs=store)
    without.handler("unused")(Log())
    without.handled_elsewhere(["note"])
    return without


async def test_jobs_for_others_are_left_to_them(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """A worker without the handler gives them back, and does not spin over it."""
    without, with_it = make_without(make_purgatory, store), make_purgatory(jobs=store)
    async with without:
        handles = [await without.defer("note", delay=delay) for delay in (0, 30, 1_000)]
        await asyncio.sleep(20)
        assert (await handles[0].get()).state is JobState.WAITING
        statistics = without.statistics().jobs
        assert statistics is not None and 0 < statistics.given_back < 100
        with_it.handler("note")(log)
        async with with_it:
            await asyncio.sleep(1_100)
            assert [(await handle.get()).state for handle in handles] == [JobState.DONE] * 3
        await store.open()
    assert len(log) == 3


async def test_a_job_that_was_left_to_others_is_missed_all_the_same(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """Somebody was there at its deadline, and put it off again and again; nobody who runs it."""
    without, with_it = make_without(make_purgatory, store), make_purgatory(jobs=store)
    with_it.handler("note")(log)
    async with without:
        skipped = await without.defer("note", delay=10, misfire="skip")
        by_hand = await without.defer("note", delay=7_200, misfire="skip")
        await asyncio.sleep(3_600)
        await without.run_now(by_hand.id)
        async with with_it:
            await asyncio.sleep(60)
            assert (await skipped.get()).outcome is JobOutcome.MISSED
            assert [run.job.id for run in log] == [by_hand.id]
        await store.open()


@pytest.mark.parametrize("is_told", [True, False])
async def test_jobs_for_others_are_looked_at_a_few_times(
    store: FailingJobStore, make_purgatory: Make, log: Log, is_told: bool
) -> None:
    """While they come closer; those of one's own are in time all the while."""
    store.is_telling = is_told
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    purgatory.handled_elsewhere(["other"])
    async with purgatory:
        for _ in range(100):
            await purgatory.defer("other", delay=58)
        wanted = []
        for delay in (0, 0.5, 1, 2, 3, 7, 20, 40):
            wanted.append(now_ms() + round(1000 * delay))
            await purgatory.defer("note", delay=delay)
        await asyncio.sleep(45)
        statistics = purgatory.statistics().jobs
        assert statistics is not None and 100 <= statistics.given_back <= 500
        assert on_time([run.at_ms for run in log], wanted)
        assert all(job.due_ms == job.deadline_ms for job in (await purgatory.jobs()).jobs)


async def test_a_store_of_small_steps_is_used_as_well(make_purgatory: Make, log: Log) -> None:
    """Whoever asks it for more than it does at once goes on asking."""
    leap(1_800_000_000_000)
    store = MemoryJobStore(now_ms=now_ms, limits=JobLimits(max_batch=2, history_count=1))
    purgatory = make_purgatory(jobs=store)
    async with purgatory:
        purgatory.handled_elsewhere(["note"])
        for number in range(20):
            await purgatory.defer("note", number, delay=1)
        await asyncio.sleep(1)
        before_ms = now_ms()
        purgatory.handler("note")(log)
        await asyncio.sleep(1)
        assert len(log) == 20 and all(run.at_ms - before_ms <= 10 for run in log)
        await asyncio.sleep(100)
        assert (await purgatory.job_counts()).done == 1


async def test_what_others_are_left_to_do_does_not_deafen(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """A job that is deferred while others are given back runs at once."""
    is_giving_back, may_go_on = asyncio.Event(), asyncio.Event()
    give_back = store.give_back

    async def slowly(returns: Sequence[JobReturn]) -> list[bool]:
        is_giving_back.set()
        await may_go_on.wait()
        return await give_back(returns)

    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    purgatory.handled_elsewhere(["other"])
    async with purgatory:
        store.give_back = slowly  # type: ignore[method-assign] # the connection is slow
        await purgatory.defer("other", delay=0)
        await is_giving_back.wait()
        handle = await purgatory.defer("note", delay=0)
        at_ms = now_ms()
        may_go_on.set()
        await handle.wait()
        assert on_time([run.at_ms for run in log], [at_ms])


async def test_an_idle_worker_hardly_asks(purgatory: Purgatory, store: FailingJobStore) -> None:
    """A few times a minute, for leases that have run out; what is deferred it is told."""
    await asyncio.sleep(10)
    before = store.asked
    await asyncio.sleep(600)
    assert store.asked - before <= 80


# Drain


async def test_draining_gives_back_what_waits(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """At once, so that others have it without waiting for a lease."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        handle = await purgatory.defer("note", delay=30)
        await asyncio.sleep(1)
        assert (await handle.get()).lease_until_ms > 0
        await purgatory.drain()
        job = await handle.get()
        assert (job.state, job.lease_until_ms, job.version) == (JobState.WAITING, 0, 1)


async def test_handlers_have_a_grace_time(store: MemoryJobStore, make_purgatory: Make) -> None:
    """Those that end within it are done; the others are cancelled, and run again elsewhere."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace=5))

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
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace=5))
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
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(grace=5))

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


# A store that fails


async def test_an_outage_loses_nothing(
    purgatory: Purgatory, store: FailingJobStore, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs wait until the store is back; it is logged once, and shown."""
    handles = [await purgatory.defer("note", n, delay=n) for n in range(1, 100, 10)]
    await asyncio.sleep(5)
    with caplog.at_level(logging.INFO, "purgatory.jobs"):
        store.is_down = True
        await asyncio.sleep(60)
        assert any("nowhere:1" in sentence for sentence in purgatory.missing)
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
        assert any("nowhere:1" in sentence for sentence in purgatory.missing)
        store.is_down = False
        job = await handle.wait()
    assert (job.state, job.attempt, runs) == (JobState.DONE, 1, 1)


async def test_a_fire_that_the_store_does_not_hear(
    purgatory: Purgatory, store: FailingJobStore
) -> None:
    """Whoever is parked is woken, the signal is kept, and the caller is told of the rest."""
    handle = await purgatory.defer("note", delay=100, keys=["k"])
    parked = asyncio.create_task(purgatory.park("k", timeout=5))
    await asyncio.sleep(1)
    store.is_down = True
    with pytest.raises(JobsNotFiredError, match="its signal is kept") as caught:
        await purgatory.fire("k", 1)
    assert (await parked).value == 1
    assert caught.value.cursor == (await parked).cursor
    store.is_down = False
    assert (await purgatory.fire("k", 1)).jobs == 1
    assert (await handle.wait(5)).outcome is JobOutcome.FIRED


async def test_a_store_that_is_away_at_the_start(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """It is tried again; parking works meanwhile."""
    store.is_down = True
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        assert "nowhere:1" in purgatory.missing[0]
        statistics = purgatory.statistics().jobs
        assert statistics is not None and "nowhere:1" in str(statistics.store_error)
        with pytest.raises(StoreUnavailableError, match="not open"):
            await purgatory.defer("note", delay=1)
        # Nobody knows whether a job waits on it.
        with pytest.raises(JobsNotFiredError):
            await purgatory.fire("k")
        store.is_down = False
        await asyncio.sleep(10)
        assert (await (await purgatory.defer("note", delay=1)).wait()).state is JobState.DONE


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
    assert not purgatory.is_open
    assert (await store.get([job.id]))[0] is not None
    await asyncio.sleep(4)
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


async def test_a_store_that_is_not_set_up_stops_the_start(make_purgatory: Make) -> None:
    """With its own sentence."""

    class Bare(MemoryJobStore):
        async def open(self) -> None:
            raise StoreNotReadyError("migrate first")

    purgatory = make_purgatory(jobs=Bare())
    with pytest.raises(StoreNotReadyError, match="migrate first"):
        await purgatory.__aenter__()
    assert not purgatory.is_open


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
    assert caplog.text.count("it is tried again and again") == 4


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


# History


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
