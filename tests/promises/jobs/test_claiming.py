"""Which jobs a process leases, when, and what it asks of the store for that."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs import Again, JobContext, JobLimits, JobState
from purgatory.jobs.model.steps import Claim, Pause
from tests.promises.kit import (
    HOUR_S,
    LEASE_S,
    START_MS,
    Bench,
    Database,
    Log,
    Process,
    now_ms,
    pending_timers,
)


async def test_a_full_process_claims_again_once_half_is_free(bench: Bench) -> None:
    """A claim for each job that ends would cost the store ten times as many steps."""
    one = await bench.process(max_held=10, max_running=1)
    bench.log.seconds = 0.06
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(60)])
    await asyncio.sleep(4)
    assert len(bench.log) == 60 and one.link.count("Claim") <= 25


async def test_a_backlog_does_not_wait_for_the_next_look(bench: Bench) -> None:
    """It is claimed as soon as jobs have ended."""
    one = await bench.process(max_held=4)
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(100)])
    await asyncio.sleep(0.45)
    assert len(bench.log) == 100


async def test_as_many_again_are_held_if_they_are_due_soon(bench: Bench) -> None:
    """A process that is full of jobs that are due later takes up to `max_held` more."""
    one = await bench.process(max_held=20, max_running=3)
    await one.jobs.add([one.jobs.spec("note", delay=50) for _ in range(30)])
    await asyncio.sleep(1)
    assert one.statistics.held == 20
    before = one.link.count("Claim")
    await asyncio.sleep(10)
    # Two looks for each second within which a job may be due.
    assert 19 <= one.link.count("Claim") - before <= 21
    await one.jobs.add([one.jobs.spec("note", delay=0.9) for _ in range(30)])
    await asyncio.sleep(0.5)
    assert one.statistics.held == 40
    await asyncio.sleep(1.5)
    assert len(bench.log) == 30


@pytest.mark.parametrize("busy", [0, 10])
async def test_what_runs_leaves_room_for_so_many_less(bench: Bench, busy: int) -> None:
    """Of those that are due soon; none of them is late by more than a second."""
    one = await bench.process(max_held=10, max_running=10)
    bench.log.seconds = 30
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(busy)])
    await asyncio.sleep(0.5)
    await one.jobs.add([one.jobs.spec("note", delay=50) for _ in range(10)])
    await asyncio.sleep(0.5)
    await one.jobs.add([one.jobs.spec("note", delay=0.6) for _ in range(20)])
    await asyncio.sleep(0.5)
    assert one.statistics.held == 20 - busy


@pytest.mark.parametrize(("horizon_s", "pause_s"), [(LEASE_S, LEASE_S / 2), (60, LEASE_S)])
async def test_an_idle_process_hardly_asks(bench: Bench, horizon_s: float, pause_s: float) -> None:
    """It looks for what enters the horizon at half of it, and for leases that have run out."""
    bench.database = Database(JobLimits(horizon_ms=int(horizon_s * 1000)))
    await bench.database.open()
    one = await bench.process()
    await asyncio.sleep(1)
    before_ms = now_ms()
    await asyncio.sleep(10 * pause_s)
    assert one.link.count("Claim", since_ms=before_ms) in (9, 10, 11)


async def test_a_store_that_announces_nothing_is_asked_for_the_next_deadline(bench: Bench) -> None:
    """Once a second; it is claimed from if there is one, and once a lease."""
    one = await bench.process(hears=False)
    await asyncio.sleep(60)
    assert one.link.count("next_due_ms") >= 45 and 9 <= one.link.count("Claim") <= 12
    other = await bench.process({}, hears=False)
    far, near = [await other.defer("note", delay=delay) for delay in (HOUR_S, 30)]
    await asyncio.sleep(1.1)
    leases_ms = [(await bench.job(job)).lease_until_ms for job in (far, near)]
    assert leases_ms[0] == 0 < leases_ms[1]
    assert (await near.wait(31)).state is JobState.DONE


@pytest.mark.parametrize(("delay", "claims"), [(0.5, 20), (5, 5)])
async def test_what_is_deferred_is_claimed_together(
    bench: Bench, process: Process, delay: float, claims: int
) -> None:
    """Four times a second, and at once what is due within a second."""
    await asyncio.sleep(1)
    before = process.link.count("Claim")
    for _ in range(20):
        await process.defer("note", delay=delay)
        await asyncio.sleep(0.05)
    assert 0.8 * claims <= process.link.count("Claim") - before <= 1.4 * claims
    await asyncio.sleep(6)
    assert len(bench.log) == 20


@pytest.mark.parametrize(("delay", "after_ms"), [(1, 0), (1.01, 250), (5, 250)])
async def test_when_a_deferred_job_is_claimed(
    bench: Bench, process: Process, delay: float, after_ms: int
) -> None:
    """At once if it is due within a second; and nothing waits for that once it is closed."""
    await asyncio.sleep(1)
    for times in (1, 2):
        process.link.asked.clear()
        began_ms = now_ms()
        await process.defer("note", times, delay=delay)
        await asyncio.sleep(0.4)
        at_ms = [at for at, step in process.link.asked if isinstance(step, Claim)]
        assert after_ms <= at_ms[0] - began_ms <= after_ms + 2
    await process.defer("note", delay=delay)
    await process.purgatory.close()
    assert pending_timers() == 0


async def test_a_process_without_handlers_claims_nothing(bench: Bench) -> None:
    """It begins once it has one."""
    one = await bench.process({})
    job = await one.defer("note", delay=0)
    await asyncio.sleep(60)
    assert one.link.count("Claim", "next_due_ms") == 0
    one.purgatory.handler("note")(bench.log)
    assert (await job.wait(1)).state is JobState.DONE


@pytest.mark.parametrize("late_ms", [0, 1])
async def test_a_job_that_is_due_now_is_not_overdue(bench: Bench, late_ms: int) -> None:
    """It would be if no worker had looked a millisecond earlier."""
    one = await bench.process({})
    await bench.database.add([one.jobs.spec("note", delay=0)])
    await asyncio.sleep(late_ms / 1000)
    two = await bench.process()
    await asyncio.sleep(0.1)
    assert two.statistics.recovery.overdue == late_ms and len(bench.log) == 1


async def test_the_jobs_of_a_worker_that_died_are_found_by_polling(bench: Bench) -> None:
    """Though the store does not count them as due while their leases last."""
    one = await bench.process(hears=False)
    spec = one.jobs.spec("note", delay=1)
    await bench.database.add([spec])
    step = Claim("dead", 2_000, 1, 20_000, ("note",))
    await bench.database.run([step])
    await one.job(spec.id).wait(40)
    assert 20 <= bench.log.at_s[0] <= 20 + LEASE_S + 1


async def test_two_processes_share_the_work(bench: Bench) -> None:
    """Each job runs once, in one of them; a paused handler in none."""
    one, two = await bench.process(max_held=5), await bench.process(max_held=5)
    bench.log.seconds = 1
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(40)])
    await asyncio.sleep(60)
    assert len(bench.log) == len({run.job.id for run in bench.log}) == 40
    assert one.statistics.done >= 10 and two.statistics.done >= 10
    await bench.database.run([Pause("note")])
    job = await one.defer("note", delay=0)
    await asyncio.sleep(60)
    assert (await bench.job(job)).state is not JobState.DONE


async def test_a_step_that_raises_is_repeated(bench: Bench, process: Process) -> None:
    """An error of the store's own is logged, and the worker goes on a second later."""
    process.link.on("Claim", error=ZeroDivisionError("a response that cannot be read"))
    job = await process.defer("note", delay=0)
    await asyncio.sleep(2.5)
    assert len(bench.actions("step-failed")) == 3
    process.link.mend()
    assert (await job.wait(1)).state is JobState.DONE


async def test_recovery_is_in_progress_until_all_that_is_overdue_is_claimed(bench: Bench) -> None:
    """`missing`, the statistics and the log say how far it is."""
    before = await bench.process({})
    await bench.database.add([before.jobs.spec("note", delay=1) for _ in range(600)])
    await asyncio.sleep(HOUR_S)
    after = await bench.process(down=True)
    after.link.mend()
    after.link.on("Claim", ask_s=1)
    await asyncio.sleep(5.5)
    assert after.missing == [] or "jobs that were due" in after.missing[0]
    await asyncio.sleep(10)
    assert after.missing == [] and after.statistics.recovery.overdue == 600
    assert bench.actions("recovery-finished")[-1:] == ["recovery-finished"]
    assert len(bench.log) == 600 and now_ms() > START_MS


async def test_the_loop_turns_while_many_jobs_are_taken_over(
    bench: Bench, process: Process
) -> None:
    """A hundred of them at a time: requests do not wait for a whole claim."""
    await process.jobs.add([process.jobs.spec("note", delay=0.9) for _ in range(250)])
    held = []
    for _ in range(200):
        await asyncio.sleep(0)
        held.append(process.statistics.held)
    assert sorted(set(held)) == [0, 100, 200, 250]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_job_that_another_service_fires_starts_within_a_poll(
    bench: Bench, is_busy: bool
) -> None:
    """However often the process that fired it claims its own; and the lateness says how late."""
    shop = await bench.process({"note": Log()}, hears=False)
    await asyncio.sleep(0.31)
    await bench.process({"slow": bench.log}, hears=False)
    for number in range(12):
        job = await shop.defer("slow", delay=HOUR_S, keys=[f"paid:{number}"])
        await asyncio.sleep(3.17)
        fired_ms = now_ms()
        await shop.fire(f"paid:{number}")
        for _ in range(16):
            if is_busy:
                await shop.defer("note", delay=0)
            await asyncio.sleep(0.1)
        assert len(bench.log) == number + 1
        late_ms = bench.log[-1].at_ms - fired_ms
        lateness_ms = (await job.get()).lateness_ms
        assert late_ms <= 1_050
        assert lateness_ms is not None and abs(lateness_ms - late_ms) <= 2


async def test_services_do_not_claim_the_jobs_of_each_other(bench: Bench) -> None:
    """While no process that has their handler runs; they start when one does, in every round."""
    rounds: list[int] = []

    async def bill(job: JobContext) -> Again | None:
        rounds.append(job.round)
        return job.again(delay=HOUR_S, keys=["paid"]) if job.round < 3 else None

    shop = await bench.process(hears=False)
    job = await shop.defer("slow", delay=HOUR_S, keys=["paid"])
    await shop.fire("paid")
    await asyncio.sleep(45)
    assert (await job.get()).epoch == 1
    await bench.process({"slow": bill}, hears=False)
    await asyncio.sleep(2)
    for number in (1, 2, 3):
        assert rounds == list(range(number))
        await shop.fire("paid")
        await asyncio.sleep(1.1)
    # Each round is claimed once, by the process that runs it.
    assert ((await job.get()).state, (await job.get()).epoch) == (JobState.DONE, 11)
