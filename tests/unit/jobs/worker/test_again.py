"""Jobs that wait again: the next round under the same id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from purgatory import Purgatory, Status
from purgatory.jobs import (
    Again,
    FailJobError,
    InvalidDeadlineError,
    InvalidJobError,
    JobContext,
    JobOutcome,
    JobState,
    MemoryJobStore,
)
from tests.promises.kit import now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import SELDOM, Make, on_time, settings
from tests.unit.jobs.worker.test_end_listeners import Ends

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


async def test_a_periodic_job(purgatory: Purgatory) -> None:
    """Each round at its time, under one id, with attempts of its own; then it is done."""
    at_ms: list[int] = []
    seen: list[tuple[str, int, int]] = []

    @purgatory.handler
    async def tick(job: JobContext) -> Again | None:
        at_ms.append(now_ms())
        seen.append((job.id, job.round, job.attempt))
        # By the deadline: a delay would add the milliseconds of each run.
        return job.again(at=job.deadline + timedelta(minutes=1)) if job.round < 3 else None

    begun_ms = now_ms()
    handle = await purgatory.defer("tick", delay=60, max_attempts=1)
    job = await handle.wait()
    assert on_time(at_ms, [begun_ms + 60_000 * number for number in range(1, 5)])
    assert seen == [(handle.id, number, 1) for number in range(4)]
    assert (job.state, job.round, job.attempt) == (JobState.DONE, 3, 1)
    statistics = purgatory.statistics().jobs
    assert statistics is not None and (statistics.again, statistics.done) == (3, 1)


async def test_a_time_that_is_past_is_now(purgatory: Purgatory) -> None:
    """A run that took longer than its period does not fail for that."""

    @purgatory.handler
    async def late(job: JobContext) -> Again | None:
        at = datetime.fromtimestamp(now_ms() / 1000, UTC) - timedelta(hours=1)
        return job.again(at=at) if job.round == 0 else None

    job = await (await purgatory.defer("late", delay=0)).wait(1)
    assert (job.state, job.round) == (JobState.DONE, 1)


HOUR = timedelta(hours=1)


def next_hour(after: datetime) -> datetime:
    return after.replace(minute=0, second=0, microsecond=0) + HOUR


def now() -> datetime:
    return datetime.fromtimestamp(now_ms() / 1000, UTC)


@SELDOM
async def test_a_schedule_without_the_runs_that_were_missed(purgatory: Purgatory) -> None:
    """As in docs/reference/handlers.md: each deadline is a time of the schedule."""
    first, deadlines = next_hour(now()), []

    @purgatory.handler
    async def hourly(job: JobContext) -> Again | None:
        deadlines.append(job.deadline)
        if job.round == 1:
            await asyncio.sleep(4.5 * HOUR.total_seconds())
        return job.again(at=next_hour(max(job.deadline, now()))) if job.round < 3 else None

    await (await purgatory.defer("hourly", at=first)).wait()
    assert deadlines == [first + hours * HOUR for hours in (0, 1, 6, 7)]


@SELDOM
async def test_a_schedule_that_makes_up_for_missed_runs(purgatory: Purgatory) -> None:
    """As in docs/reference/handlers.md: the time of each run is in its payload."""
    first, begun = next_hour(now()), []

    @purgatory.handler
    async def total(job: JobContext, until: str) -> Again | None:
        begun.append((datetime.fromisoformat(until), now()))
        if job.round == 1:
            await asyncio.sleep(4.5 * HOUR.total_seconds())
        following = next_hour(datetime.fromisoformat(until))
        again = job.again(at=following, payload=following.isoformat())
        return again if job.round < 7 else None

    await (await purgatory.defer("total", first.isoformat(), at=first)).wait()
    assert [until for until, _ in begun] == [first + hours * HOUR for hours in range(8)]
    late = [(ran - until) // timedelta(minutes=30) for until, ran in begun]
    assert late == [0, 0, 7, 5, 3, 1, 0, 0]


async def test_attempts_are_those_of_a_round(make_purgatory: Make, store: MemoryJobStore) -> None:
    """A round that failed and was tried again costs the next none; the last error is told."""
    purgatory = make_purgatory(jobs=store, job_settings=settings())
    attempts: list[tuple[int, int]] = []

    @purgatory.handler
    async def work(job: JobContext) -> Again | None:
        attempts.append((job.round, job.attempt))
        if job.attempt == 1:
            raise OSError("not yet")
        return job.again(delay=9) if job.round < 2 else None

    async with purgatory:
        job = await (await purgatory.defer("work", delay=0, max_attempts=2)).wait()
    assert attempts == [(number, attempt) for number in range(3) for attempt in (1, 2)]
    assert (job.state, job.error) == (JobState.DONE, "OSError: not yet")


async def test_the_next_round_waits_for_a_key(purgatory: Purgatory) -> None:
    """The wait for an event within a longer task: other keys, another payload, a deadline."""
    seen: list[tuple[str, JobOutcome, str | None, Any]] = []

    @purgatory.handler
    async def ship(job: JobContext, step: str) -> Again | None:
        seen.append((step, job.outcome, job.fired_key, job.fired_value))
        if step == "pack":
            return job.again(delay=3_600, keys=["paid", "packed"], until="all", payload="send")
        return None

    handle = await purgatory.defer("ship", "pack", delay=900, keys=["packed"])
    await purgatory.fire("packed", 1)
    await asyncio.sleep(1)
    job = await handle.get()
    assert job.is_undecided and (job.keys, job.needed) == (("paid", "packed"), 2)
    assert (job.fired_key, job.outcome, job.round) == (None, None, 1)
    await purgatory.fire("paid", 2)
    assert (await handle.get()).fired_before == ("paid",)
    await purgatory.fire("packed", 3)
    await handle.wait(1)
    assert seen == [("pack", "fired", "packed", 1), ("send", "fired", "packed", 3)]


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_what_is_not_given_stays(purgatory: Purgatory, is_in_thread: bool) -> None:
    """Keys, how many of them, what a fire does, and the payload."""

    def again(job: JobContext, payload: Any) -> Again:
        return job.again(delay=9)

    async def again_async(job: JobContext, payload: Any) -> Again:
        return again(job, payload)

    purgatory.handler("again")(again if is_in_thread else again_async)
    handle = await purgatory.defer(
        "again", None, delay=0, keys=["a", "b"], until="all", on_fire="cancel", ceiling=0
    )
    job = await handle.get()
    while job.round == 0:
        job = await handle.wait_changed(job.version)
    assert (job.keys, job.needed, job.on_fire, job.payload) == (("a", "b"), 2, "cancel", None)
    assert (job.round, job.ceiling_ms, job.attempt) == (1, None, 0)
    await purgatory.fire("a")
    await purgatory.fire("b")
    assert (await handle.get()).state is JobState.CANCELLED


async def test_what_fired_since_a_cursor_counts_for_the_next_round(purgatory: Purgatory) -> None:
    """Between the reading of a state and the recording of the round, nothing is missed."""
    outcomes: list[JobOutcome] = []

    @purgatory.handler
    async def poll(job: JobContext) -> Again | None:
        outcomes.append(job.outcome)
        since = purgatory.cursor("k")
        if job.round == 0:
            await purgatory.fire("k", "in between")
        return job.again(delay=900, keys=["k"], since=since) if job.round == 0 else None

    job = await (await purgatory.defer("poll", delay=0)).wait(1)
    assert outcomes == ["expired", "fired"]
    assert (job.fired_key, job.fired_value) == ("k", "in between")


async def test_a_round_that_makes_no_sense_is_a_failed_attempt(purgatory: Purgatory) -> None:
    """The error says why; no round begins."""
    bad: dict[str, Callable[[JobContext], Again]] = {
        "neither delay nor at": lambda job: job.again(),
        "no keys": lambda job: job.again(delay=1, until="all"),
        "cursor": lambda job: job.again(delay=1, keys=["k"], since="nonsense"),
        "not JSON": lambda job: job.again(delay=1, payload={1, 2}),
    }

    @purgatory.handler
    async def work(job: JobContext, name: str) -> Again:
        return bad[name](job)

    for name in bad:
        job = await (await purgatory.defer("work", name, delay=0, max_attempts=1)).wait(1)
        assert job.state is JobState.FAILED and job.error is not None and name in job.error
        assert job.round == 0


async def test_arguments_are_refused_where_they_are_given(purgatory: Purgatory) -> None:
    """In the handler, whose line the traceback then has; what depends on limits follows later."""
    refused = 0

    @purgatory.handler
    async def work(job: JobContext) -> None:
        nonlocal refused
        for wrong in (
            {},
            {"delay": 1, "at": job.deadline},
            {"delay": 1, "keys": ["a", "b"], "until": 3},
            {"delay": 1, "on_fire": "explode"},
            {"delay": 1, "on_fire": "cancel", "keys": []},
        ):
            with pytest.raises((InvalidDeadlineError, InvalidJobError)):
                job.again(**wrong)  # type: ignore[arg-type] # on purpose
            refused += 1

    assert (await (await purgatory.defer("work", delay=0)).wait(1)).state is JobState.DONE
    assert refused == 5


async def test_another_job_with_its_dedupe_key_takes_its_place(purgatory: Purgatory) -> None:
    """A service that starts while its periodic job runs adds another: one of them goes on."""
    running = asyncio.Event()
    goes_on = asyncio.Event()

    @purgatory.handler
    async def nightly(job: JobContext) -> Again:
        running.set()
        await goes_on.wait()
        return job.again(delay=86_400)

    options: dict[str, Any] = {"dedupe_key": "nightly", "on_conflict": "keep"}
    first = await purgatory.defer("nightly", delay=0, **options)
    await running.wait()
    second = await purgatory.defer("nightly", delay=60, **options)
    assert second.id != first.id
    goes_on.set()
    assert (await first.wait(1)).state is JobState.DONE
    # It holds its dedupe key in the next round, too.
    job = await second.wait_changed((await second.get()).version, 61)
    while job.round == 0:
        job = await second.wait_changed(job.version, 1)
    third = await purgatory.defer("nightly", delay=0, **options)
    assert third.id == second.id


async def test_each_round_is_told(store: FailingJobStore, make_purgatory: Make) -> None:
    """To the journal and others that record jobs: an operation of its own."""
    ends = Ends()
    purgatory = make_purgatory(jobs=store, listeners=[ends])

    @purgatory.handler
    async def work(job: JobContext) -> Again:
        if job.round == 2:
            raise FailJobError("enough")
        return job.again(delay=5, keys=["k"])

    async with purgatory:
        handle = await purgatory.defer("work", delay=5)
        await asyncio.sleep(6)
        await purgatory.fire("k")
        await handle.wait()
    told = [(end["round_number"], end["status"], end["state"]) for end in ends]
    assert told == [
        (0, Status.EXPIRED, "waiting"),
        (1, Status.FIRED, "waiting"),
        (2, Status.EXPIRED, "failed"),
    ]
    since = [end["deferred_at_ms"] for end in ends]
    assert 4_990 <= since[1] - since[0] <= 5_010 and 900 <= since[2] - since[1] <= 1_100


async def test_waiting_rounds_hold_nothing(make_purgatory: Make) -> None:
    """Very many jobs between two rounds: no slot, no lease, nothing in memory but the store's."""
    purgatory = make_purgatory(jobs=MemoryJobStore(now_ms=now_ms))
    count = 100_000 if IS_THOROUGH else 2_000

    @purgatory.handler
    async def work(job: JobContext) -> Again | None:
        return job.again(delay=3_600) if job.round == 0 else None

    async with purgatory:
        specs = [purgatory.jobs.spec("work", delay=1) for _ in range(count)]
        await purgatory.jobs.add(specs)
        while True:
            await asyncio.sleep(5)
            statistics = purgatory.statistics().jobs
            assert statistics is not None
            if statistics.again == count:
                break
        assert (statistics.held, statistics.running, statistics.waiting) == (0, 0, 0)
        counts = await purgatory.jobs.counts()
        assert (counts.waiting, counts.running, counts.done) == (count, 0, 0)
