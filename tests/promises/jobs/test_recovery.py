"""Jobs that were due while nobody ran, that kill their workers, and that are for others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import JobLimits, JobOutcome, JobState
from purgatory.jobs.model.steps import Cancel
from tests.promises.kit import HOUR_S, LEASE_S, Bench, Database, Process, now_ms


async def missed(bench: Bench, count: int = 1, delay: float = 10, **options: Any) -> list[str]:
    """Add jobs while nobody runs them, until an hour after the deadline; return their ids."""
    before = await bench.process({})
    specs = [before.jobs.spec("note", delay=delay, **options) for _ in range(count)]
    await bench.database.add(specs)
    await asyncio.sleep(HOUR_S)
    return [spec.id for spec in specs]


@pytest.mark.parametrize("misfire", ["run", "skip", "spread"])
async def test_what_was_due_while_nobody_ran(bench: Bench, misfire: str) -> None:
    """It runs at once, not at all, or within a minute; as the job has it. The log says it all."""
    ids = await missed(bench, 20, misfire=misfire, keys=["k"])
    began_ms = now_ms()
    one = await bench.process()
    await asyncio.sleep(100)
    jobs = [await bench.job(each) for each in ids]
    wanted = (
        (JobState.CANCELLED, JobOutcome.MISSED)
        if misfire == "skip"
        else (JobState.DONE, JobOutcome.EXPIRED)
    )
    assert {(job.state, job.outcome) for job in jobs} == {wanted}
    late_ms = sorted(run.at_ms - began_ms for run in bench.log)
    assert len(late_ms) == (0 if misfire == "skip" else 20)
    if misfire == "run":
        assert late_ms[-1] <= 2
    elif late_ms:
        assert 0 <= late_ms[0] < 20_000 < late_ms[-1] <= 60_002
    found = one.statistics.recovery
    assert found.is_finished and found.overdue == 20
    assert (found.missed, found.spread) == (20 * (misfire == "skip"), 20 * (misfire == "spread"))


async def test_a_process_that_recovers_says_so(bench: Bench) -> None:
    """/readyz has it, until it is done; a process without handlers recovers nothing."""
    await missed(bench, 3)
    one = await bench.process(down=True)
    one.link.mend()
    one.link.on("Claim", ask_s=5)
    two = await bench.process({})
    await asyncio.sleep(1)
    said = [text for text in one.missing if text.startswith("recovery is in progress: 0 jobs")]
    assert len(said) == 1 and two.missing == []
    await asyncio.sleep(20)
    assert one.missing == [] and len(bench.log) == 3


@pytest.mark.parametrize("misfire", ["skip", "spread"])
@pytest.mark.parametrize(("late_ms", "is_missed"), [(1_000, False), (1_001, True)])
async def test_a_job_is_missed_after_a_second(
    bench: Bench, misfire: str, late_ms: int, is_missed: bool
) -> None:
    """Whoever looks within it runs the job as any other."""
    before = await bench.process({})
    await bench.database.add([before.jobs.spec("note", delay=0, misfire=misfire)])
    await asyncio.sleep(late_ms / 1000)
    one = await bench.process()
    await asyncio.sleep(0.01)
    assert one.statistics.recovery.missed + one.statistics.recovery.spread == is_missed


async def test_a_job_that_is_claimed_late_is_not_missed(bench: Bench) -> None:
    """As the process was full: somebody was there at its deadline. Nor is one that has fired."""
    one = await bench.process(max_running=1, max_held=1)
    bench.log.seconds = 5
    for _ in range(3):
        await one.defer("note", delay=1, misfire="skip")
    await asyncio.sleep(30)
    assert len(bench.log) == 3 and one.is_counting(done=3)
    assert (one.statistics.recovery.overdue, one.statistics.recovery.missed) == (0, 0)
    fired = await one.defer("note", delay=HOUR_S, misfire="skip", keys=["k"])
    await one.purgatory.close()
    other = await bench.process({})
    await other.fire("k", 1)
    await asyncio.sleep(2 * HOUR_S)
    await bench.process()
    await asyncio.sleep(6)
    assert (await bench.job(fired)).outcome is JobOutcome.FIRED and len(bench.log) == 4


@pytest.mark.parametrize("misfire", ["skip", "spread"])
async def test_what_others_decided_meanwhile_is_not_counted(bench: Bench, misfire: str) -> None:
    """Only what the store has acknowledged."""
    ids = await missed(bench, 3, misfire=misfire)
    one = await bench.process(spread_ms=1_000_000_000, down=True)
    one.link.mend()
    one.link.on("Miss", "GiveBack", ask_s=5)
    await asyncio.sleep(4)
    await bench.database.run([Cancel(ids[0])])
    await asyncio.sleep(20)
    found = one.statistics.recovery
    assert (found.missed, found.spread) == ((2, 0) if misfire == "skip" else (0, 2))


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_job_that_kills_its_workers_is_given_up(bench: Bench, is_taken: bool) -> None:
    """After max_attempts + 10 starts nobody is risked any more, unless somebody else has it."""
    before = await bench.process({})
    spec = before.jobs.spec("note", delay=0, max_attempts=2)
    await bench.database.add([spec])
    for _ in range(12):
        await bench.take(spec.id, start=True, lease_s=0.001)
        await asyncio.sleep(0.01)
    one = await bench.process(down=True)
    one.link.mend()
    one.link.on("Finish", ask_s=LEASE_S + 1 if is_taken else 0)
    one.link.on("Renew", ask_s=60 if is_taken else 0)
    await asyncio.sleep(LEASE_S + 2)
    if not is_taken:
        job = await bench.job(spec.id)
        assert (job.state, job.attempt) == (JobState.FAILED, 12)
        assert job.error is not None and "never reported back" in job.error
        assert one.is_counting(failed=1) and bench.actions("job-given-up") == ["job-given-up"]
    assert bench.log == []


@pytest.mark.parametrize("hears", [True, False])
async def test_jobs_for_others_cost_few_requests(bench: Bench, hears: bool) -> None:
    """They are left to them; one's own are in time all the while."""
    one = await bench.process({"note": bench.log}, hears=hears)
    one.purgatory.handled_elsewhere(["other"])
    others = [await one.defer("other", delay=28) for _ in range(100)]
    delays = (0, 0.5, 1, 2, 3, 7, 20, 40)
    began_s = (now_ms() - 1_800_000_000_000) / 1000
    for delay in delays:
        await one.defer("note", delay=delay)
    asked = ("Claim", "next_due_ms", "now_ms")
    before = one.link.count(*asked)
    await asyncio.sleep(60)
    assert one.link.count(*asked) - before <= (20 if hears else 85) + 2 * len(delays)
    assert [round(at_s - began_s, 1) for at_s in bench.log.at_s] == list(delays)
    assert {(await bench.job(each)).epoch for each in others} == {0}


async def test_a_process_with_the_handler_takes_what_was_left(bench: Bench) -> None:
    """It was missed all the same: nobody was there who runs it. What is run by hand is not."""
    one = await bench.process({"unused": bench.log})
    skipped = await one.defer("note", delay=10, misfire="skip")
    by_hand = await one.defer("note", delay=2 * HOUR_S, misfire="skip")
    await asyncio.sleep(HOUR_S)
    await one.jobs.run_now(by_hand.id)
    await bench.process()
    await asyncio.sleep(60)
    assert (await bench.job(skipped)).outcome is JobOutcome.MISSED
    assert [run.job.id for run in bench.log] == [by_hand.id]


async def test_a_store_of_small_steps(bench: Bench) -> None:
    """Whoever asks it for more than it does at once goes on asking; history is pruned so, too."""
    bench.database = Database(JobLimits(max_batch=2, history_count=1, history_age_ms=600_000))
    await bench.database.open()
    one = await bench.process({})
    await bench.database.add([one.jobs.spec("note", delay=1)])
    for _ in range(19):
        await one.defer("note", delay=1)
    await asyncio.sleep(1)
    before_ms = now_ms()
    two: Process = await bench.process()
    await asyncio.sleep(1)
    assert len(bench.log) == 20 and all(run.at_ms - before_ms <= 10 for run in bench.log)
    assert two.link.count("Prune") <= 15
    await asyncio.sleep(100)
    assert (await two.jobs.counts()).done == 1
    await asyncio.sleep(700)
    assert (await two.jobs.counts()).done == 0


async def test_a_long_recovery_is_logged_now_and_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for so many jobs, and not for each claim."""
    monkeypatch.setattr("purgatory.jobs.worker.claiming.LOG_EVERY", 400)
    await missed(bench, 1_000)
    await bench.process()
    await asyncio.sleep(5)
    assert bench.actions("recovery-progress", "recovery-finished")[-3:] == [
        "recovery-progress", "recovery-progress", "recovery-finished",
    ]  # fmt: skip
