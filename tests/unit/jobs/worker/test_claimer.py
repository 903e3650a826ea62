"""Claimer: when it claims again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import JobLimits, WorkerSettings
from purgatory.jobs.worker.claiming.claimer import SLICE, Claimer
from purgatory.jobs.worker.claiming.due_listener import SOON_MS
from purgatory.jobs.worker.lease_renewer import LeaseRenewer
from purgatory.jobs.worker.running.run_queue import JobRunQueue
from purgatory.timer.clock import NS_PER_MS
from tests.patience import until_in_turns
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.parts import LEASE_MS, Parts

MAX_HELD = 10


def claimer_of(parts: Parts, max_held: int = MAX_HELD, limits: JobLimits | None = None) -> Claimer:
    parts.handlers.add("work", lambda job: None)
    runner = JobRunQueue(parts.leased, _run, max_running=1, max_threads=1, max_waiting=MAX_HELD)
    return Claimer(
        parts.worker_store,
        parts.leased,
        runner,
        handlers=parts.handlers,
        recovery=parts.recovery,
        renewer=LeaseRenewer(parts.worker_store, parts.leased),
        listener=parts.listener,
        settings=WorkerSettings(max_held=max_held, poll_ms=1_000),
        limits=parts.store.limits if limits is None else limits,
    )


async def _run(leased: Any) -> None:
    """A job ends at once."""


@pytest.mark.parametrize(("ended", "is_awake"), [(5, False), (6, True), (7, True)])
async def test_a_full_claimer_wakes_once_more_than_half_is_free(
    parts: Parts, *, ended: int, is_awake: bool
) -> None:
    """A claim for each job that ends would cost the store ten times as many steps."""
    claimer = claimer_of(parts)
    await parts.add(*[30] * (MAX_HELD + 5))
    step = asyncio.create_task(claimer.step())
    await until_in_turns(lambda: claimer._was_full)
    assert len(parts.leased) == MAX_HELD
    for claim in parts.leased.claims()[:ended]:
        parts.leased.remove(parts.leased._jobs[claim.id])
    claimer.note_room()
    for _ in range(5):
        await asyncio.sleep(0)
    assert step.done() == is_awake
    step.cancel()
    parts.leased.take_all()


@pytest.mark.parametrize(("due", "limit"), [(0, MAX_HELD), (3, MAX_HELD - 3), (MAX_HELD, 0)])
async def test_a_full_claimer_claims_what_is_due_now_for_jobs_that_are_due_later(
    parts: Parts, *, due: int, limit: int
) -> None:
    """Those that run or wait for a slot leave room for so many less."""
    claimer = claimer_of(parts)
    parts.leased.on_due = lambda leased: None
    await parts.add(*[0] * due, *[30] * (MAX_HELD - due))
    await claimer._claim()
    assert (len(parts.leased), claimer._room()) == (MAX_HELD, (SOON_MS, MAX_HELD))
    claimer._runner._async.due.extend(list(parts.leased._jobs.values())[:due])
    assert claimer._room() == (SOON_MS, limit)
    parts.leased.take_all()


async def test_a_full_claimer_looks_twice_before_a_job_is_due(parts: Parts) -> None:
    """Jobs that are due within SOON_MS are claimed in spite of later ones: none may be late."""
    loop = asyncio.get_running_loop()
    claimer = claimer_of(parts)
    await parts.add(*[30] * MAX_HELD)
    began = loop.time()
    await claimer.step()
    assert len(parts.leased) == MAX_HELD
    assert loop.time() - began <= SOON_MS / 2_000 + 0.001
    parts.leased.take_all()


@pytest.mark.parametrize(
    ("horizon_ms", "pause_ms"), [(LEASE_MS, LEASE_MS // 2), (3 * LEASE_MS, LEASE_MS)]
)
async def test_what_enters_the_horizon_is_claimed_at_half_of_it(
    parts: Parts, *, horizon_ms: int, pause_ms: int
) -> None:
    """Nothing announces that; a shorter lease of a worker that died may run out before."""
    loop = asyncio.get_running_loop()
    claimer = claimer_of(parts, limits=JobLimits(horizon_ms=horizon_ms))
    began = loop.time()
    await claimer.step()
    assert pause_ms <= (loop.time() - began) * 1000 <= pause_ms + 1


async def claimer_of_silent_store(parts: Parts) -> Claimer:
    """Return one that has claimed from a store which announces nothing."""
    assert isinstance(parts.store, FailingJobStore)
    parts.store.is_telling = False
    claimer = claimer_of(parts)
    await claimer._claim()
    return claimer


@pytest.mark.parametrize(("since_ms", "is_claiming"), [(LEASE_MS - 1, False), (LEASE_MS, True)])
async def test_a_store_that_says_nothing_is_claimed_from_after_a_lease(
    parts: Parts, *, since_ms: int, is_claiming: bool
) -> None:
    """Leases of dead workers may have run out; before that, it is asked what is due next."""
    claimer = await claimer_of_silent_store(parts)
    claimed_ns = claimer._claimed_ns
    parts.timer.clock.advance_ns(since_ms * NS_PER_MS)  # type: ignore[attr-defined] # a MockClock
    await claimer.step()
    assert (claimer._claimed_ns != claimed_ns) == is_claiming


@pytest.mark.parametrize(("later_ms", "is_claiming"), [(0, True), (1, False)])
async def test_a_store_that_says_nothing_is_claimed_from_once_a_job_is_within_the_horizon(
    parts: Parts, *, later_ms: int, is_claiming: bool
) -> None:
    """Jobs that are due later are left to whoever looks then."""
    claimer = await claimer_of_silent_store(parts)
    await parts.add((parts.store.limits.horizon_ms + later_ms) / 1000)
    assert await claimer._has_to_claim() == is_claiming


@pytest.mark.parametrize("late_ms", [0, 1])
async def test_a_job_that_is_due_now_is_not_overdue(parts: Parts, *, late_ms: int) -> None:
    """It would be if no worker had looked a millisecond earlier."""
    claimer = claimer_of(parts)
    await parts.add(0)
    parts.timer.clock.advance(late_ms)  # type: ignore[attr-defined] # a MockClock
    await claimer._claim()
    assert (len(parts.leased), parts.recovery.progress.overdue) == (1, late_ms)
    parts.leased.take_all()


async def test_the_loop_turns_while_many_jobs_are_taken_over(parts: Parts) -> None:
    """A slice of them at a time."""
    claimer = claimer_of(parts, max_held=1_000)
    await parts.add(*[30] * (2 * SLICE + 10))
    claiming = asyncio.create_task(claimer._claim())
    held = [0]
    while not claiming.done():
        await asyncio.sleep(0)
        held.append(len(parts.leased))
    assert sorted(set(held)) == [0, SLICE, 2 * SLICE, 2 * SLICE + 10]
    parts.leased.take_all()
