"""Leased jobs: armed, armed again, lost, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobContext, JobState, MemoryJobStore, WorkerSettings
from purgatory.jobs.model import JobSpec
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms


class Bench:
    """Leased jobs on a timer, and those that became due."""

    def __init__(self, timer: SystemTimer, clock: MockClock) -> None:
        self.timer = timer
        self.clock = clock
        store_clock = StoreClock(clock)
        store_clock.note(clock.wall_ms(), clock.now_ns())
        self.leased = LeasedJobs(timer, store_clock)
        self.due: list[LeasedJob] = []
        self.leased.on_due = self.due.append

    async def claim(self, count: int = 1, delay_ms: int = 100) -> list[LeasedJob]:
        """Lease jobs that are due after `delay_ms`."""
        store = MemoryJobStore(now_ms=self.clock.wall_ms)
        await store.open()
        specs = [
            JobSpec.of("note", wall_ms=self.clock.wall_ms(), delay=delay_ms / 1_000)
            for _ in range(count)
        ]
        await store.add(specs)
        claimed = await store.claim("w", within_ms=delay_ms + 1, limit=count, lease_ms=60_000)
        await store.close()
        leased = []
        for job in claimed.jobs:
            self.leased.add(job)
            leased.append(self.leased._jobs[job.id])
        assert len(leased) == count
        return leased

    def after(self, ms: int) -> int:
        """Let time pass; return how many have become due."""
        self.clock.advance(ms)
        self.timer.advance_clock()
        return len(self.due)


@pytest.fixture
def bench(make_timer: Callable[..., SystemTimer], clock: MockClock) -> Bench:
    """No jobs yet, on a timer that has to be empty in the end."""
    return Bench(make_timer(), clock)


async def test_a_job_becomes_due_once(bench: Bench) -> None:
    """At its time, and not before."""
    [leased] = await bench.claim()
    assert (bench.after(99), len(bench.timer)) == (0, 1)
    assert (bench.after(2), bench.due) == (1, [leased])
    assert (bench.after(1_000), len(bench.leased)) == (1, 1)


async def test_a_job_that_the_store_did_not_start_waits_again(bench: Bench) -> None:
    """Until the store's deadline, and for a millisecond at least: this must not spin."""
    [leased] = await bench.claim()
    bench.after(101)
    leased.is_running = True
    bench.leased.rearm(leased, bench.clock.wall_ms() + 50)
    assert not leased.is_running
    assert (bench.after(49), bench.after(2)) == (1, 2)
    bench.leased.rearm(leased, bench.clock.wall_ms() - 50)
    assert (bench.after(0), bench.after(1)) == (2, 3)


async def test_nothing_is_armed_again_during_a_drain(bench: Bench) -> None:
    """Nor is a job that is not leased any more: its timer would outlive the worker."""
    first, second = await bench.claim(2)
    bench.after(101)
    bench.leased.remove(first)
    bench.leased.rearm(first, bench.clock.wall_ms() + 50)
    assert len(bench.timer) == 0
    bench.leased.close()
    second.is_running = True
    bench.leased.rearm(second, bench.clock.wall_ms() + 50)
    assert (len(bench.timer), second.is_running, len(bench.leased)) == (0, False, 1)
    assert bench.leased.take_waiting() == [second.claim]


async def test_a_lost_lease_takes_its_job_from_the_timer(bench: Bench) -> None:
    """One that runs stays: it hears of that from the store, when it has ended."""
    waiting, running, other = await bench.claim(3)
    running.is_running = True
    running.disarm()
    bench.leased.remove_lost([waiting.claim, running.claim])
    assert (len(bench.leased), len(bench.timer)) == (2, 1)
    assert waiting.claim not in bench.leased and running.claim in bench.leased
    assert bench.leased.take_waiting() == [other.claim]
    assert bench.leased.take_all() == [running.claim]
    bench.leased.remove_lost([waiting.claim, other.claim])
    assert (len(bench.leased), len(bench.timer), bench.due) == (0, 0, [])


async def test_a_lease_that_is_lost_while_its_job_runs(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """Another worker runs it again; what the first one reports is not taken, and it forgets it."""
    may_end = {1: asyncio.Event(), 2: asyncio.Event()}
    attempts: list[int] = []

    async def slow(job: JobContext) -> None:
        attempts.append(job.attempt)
        await may_end[job.attempt].wait()

    first = make_purgatory(jobs=store, job_settings=WorkerSettings(lease_ms=60_000, grace_ms=0))
    second = make_purgatory(jobs=store, job_settings=WorkerSettings(lease_ms=60_000, grace_ms=0))
    for purgatory in (first, second):
        purgatory.handler("slow")(slow)
    async with first:
        handle = await first.defer("slow", delay=0)
        await asyncio.sleep(1)
        # As if the process had been asleep: its lease has run out, and another worker is quicker.
        leap(61_000)
        async with second:
            await asyncio.sleep(1)
            assert attempts == [1, 2]
            # The first hears that it has lost its lease, in between.
            await asyncio.sleep(30)
            assert _held(first) == (1, 1) and _held(second) == (1, 1)
            may_end[1].set()
            await asyncio.sleep(1)
            counts = first.statistics().jobs
            assert counts is not None
            assert (_held(first), counts.done, counts.lost) == ((0, 0), 0, 1)
            assert (await handle.get()).state is JobState.RUNNING
            may_end[2].set()
            await asyncio.sleep(1)
            job = await handle.get()
            assert (job.state, job.attempt, _held(second)) == (JobState.DONE, 2, (0, 0))
    assert attempts == [1, 2]


def _held(purgatory: Purgatory) -> tuple[int, int]:
    counts = purgatory.statistics().jobs
    assert counts is not None
    return counts.held, counts.running


async def test_lateness_is_in_the_statistics(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """Of each start: percentiles of the last ones, and the longest of all."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(max_running=1))
    purgatory.handler("note")(log)

    @purgatory.handler("slow")
    async def slow(job: JobContext) -> None:
        await asyncio.sleep(3)

    async with purgatory:
        assert _lateness(purgatory) == (0, 0, 0)
        for _ in range(10):
            await purgatory.defer("note", delay=1)
        await asyncio.sleep(2)
        assert max(_lateness(purgatory)) <= 2
        began_ms = now_ms()
        await purgatory.defer("slow", delay=1)
        late = await purgatory.defer("note", delay=2)
        await late.wait()
        assert 4_000 <= log[-1].at_ms - began_ms <= 4_010
        p50_ms, p99_ms, longest_ms = _lateness(purgatory)
        assert p50_ms <= 2 and 2_000 <= p99_ms == longest_ms <= 2_010


def _lateness(purgatory: Purgatory) -> tuple[int, int, int]:
    counts = purgatory.statistics().jobs
    assert counts is not None
    return counts.lateness.p50_ms, counts.lateness.p99_ms, counts.lateness.longest_ms
