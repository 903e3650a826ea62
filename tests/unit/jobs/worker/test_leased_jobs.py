"""Jobs that a worker has leased wait in its timer."""

from __future__ import annotations

import asyncio

from purgatory.jobs.worker.leased_jobs import LeasedJob
from tests.unit.jobs.worker.parts import Parts
from tests.unit.jobs.worker.runs import now_ms, on_time


async def test_each_job_is_passed_on_when_it_is_due(parts: Parts) -> None:
    """In the order of their deadlines; one that is due already at once."""
    start_ms = now_ms()
    due: list[tuple[str, int]] = []
    parts.leased.on_due = lambda leased: due.append((leased.claim.id, now_ms() - start_ms))
    ids = await parts.add(2, 0, 1)
    for job in await parts.claim():
        parts.leased.add(job)
    assert [job_id for job_id, _ in due] == [ids[1]]
    await asyncio.sleep(3)
    assert [job_id for job_id, _ in due] == [ids[1], ids[2], ids[0]]
    assert on_time([at_ms for _, at_ms in due], [0, 1_000, 2_000])
    # Due, and still leased until its run has ended.
    assert len(parts.leased) == 3


async def test_a_removed_job_is_never_due(parts: Parts) -> None:
    """Whether its lease was lost, or the worker drains."""
    due: list[LeasedJob] = []
    parts.leased.on_due = due.append
    await parts.add(1, 1, 1)
    jobs = await parts.claim()
    for job in jobs:
        parts.leased.add(job)
    parts.leased.remove_lost([jobs[0].claim, jobs[0].claim])
    assert jobs[0].claim not in parts.leased and jobs[1].claim in parts.leased
    assert sorted(parts.leased.take_waiting()) == sorted([jobs[1].claim, jobs[2].claim])
    await asyncio.sleep(2)
    assert (due, len(parts.leased), len(parts.timer)) == ([], 0, 0)


async def test_a_running_job_outlives_its_lease(parts: Parts) -> None:
    """The store says so when its result is recorded; it does not go back while it waits, either."""
    due: list[LeasedJob] = []
    parts.leased.on_due = due.append
    await parts.add(0)
    [job] = await parts.claim()
    parts.leased.add(job)
    [leased] = due
    leased.is_running = True
    parts.leased.remove_lost([job.claim])
    assert parts.leased.take_waiting() == []
    assert parts.leased.claims() == [job.claim]
    assert parts.leased.take_all() == [job.claim]
    assert len(parts.leased) == 0


async def test_a_job_is_armed_again(parts: Parts) -> None:
    """A millisecond later at the earliest: a store whose clock is behind is not asked in a loop."""
    start_ms = now_ms()
    due: list[int] = []
    parts.leased.on_due = lambda leased: due.append(now_ms() - start_ms)
    await parts.add(0)
    [job] = await parts.claim()
    leased = LeasedJob(job)
    parts.leased.rearm(leased, start_ms + 5)
    assert len(parts.timer) == 0, "it is not leased any more"
    parts.leased.add(job)
    [leased] = parts.leased._jobs.values()
    leased.is_running = True
    parts.leased.rearm(leased, start_ms)
    assert (due, leased.is_running, leased.due_ms) == ([0], False, start_ms)
    await asyncio.sleep(1)
    assert on_time(due, [0, 1])


async def test_no_job_is_armed_again_during_a_drain(parts: Parts) -> None:
    """It is released with the others that do not run."""
    due: list[LeasedJob] = []
    parts.leased.on_due = due.append
    await parts.add(0)
    [job] = await parts.claim()
    parts.leased.add(job)
    [leased] = due
    leased.is_running = True
    parts.leased.close()
    parts.leased.rearm(leased, now_ms() + 5)
    assert len(parts.timer) == 0
    assert parts.leased.take_waiting() == [job.claim]
