"""Periodic jobs: which times have a run, and when; docs/reference/handlers.md, Periodic jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.job_errors import InvalidJobError, NoJobStoreError
from purgatory.jobs import Job, JobState
from purgatory.jobs.handlers.handler import MARK
from purgatory.jobs.model.job import JobFilter
from tests.promises.kit import START_MS, Bench, OutboxDatabase, now_ms

FIVE: dict[str, Any] = {"every": 5}
# For days of virtual time: a worker looks for jobs a few times in each lease.
SELDOM: dict[str, Any] = {"lease_ms": 1_800_000, "poll_ms": 600_000}


async def waiting(bench: Bench) -> list[Job]:
    where = JobFilter(state=JobState.WAITING, concurrency_key=MARK)
    page = await bench.database.query(where, limit=100)
    found: list[Job] = page.jobs
    return found


async def test_each_time_has_one_run_in_all_processes(bench: Bench) -> None:
    """However many declare it; on time."""
    for _ in range(3):
        await bench.process({}, periodic=FIVE)
    await asyncio.sleep(21)
    assert bench.ticks.times == [5, 10, 15, 20]
    assert all(began_s - at_s < 0.1 for at_s, began_s in bench.ticks)
    [pending] = await waiting(bench)
    assert pending.deadline_ms - now_ms() == 4_000


async def test_the_times_are_those_of_before_a_restart(bench: Bench) -> None:
    """Whenever it starts again; what was missed meanwhile has one run."""
    first = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(7.3)
    await first.close()
    await asyncio.sleep(11)
    await bench.process({}, periodic=FIVE)
    await asyncio.sleep(8)
    times, began = zip(*bench.ticks, strict=True)
    assert times == (5, 10, 20, 25)
    assert began[1] == pytest.approx(18.3, abs=0.1)


async def test_what_is_missed_may_be_left_out(bench: Bench) -> None:
    """With catch_up=False; the next time has its run."""
    first = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(7)
    await first.close()
    await asyncio.sleep(11)
    second = await bench.process({}, periodic={**FIVE, "catch_up": False})
    await asyncio.sleep(3)
    # That of the first one was stored with its policy.
    assert bench.ticks.times == [5, 10, 20]
    other = await bench.process({}, periodic={**FIVE, "catch_up": False})
    await asyncio.sleep(3)
    for process in (second, other):
        await process.close()
    await asyncio.sleep(12)
    await bench.process({}, periodic={**FIVE, "catch_up": False})
    await asyncio.sleep(6)
    assert bench.ticks.times == [5, 10, 20, 40]


async def test_a_run_that_fails_for_good_ends_nothing_else(bench: Bench) -> None:
    """It is failed, with its error; the next time has its run."""
    bench.ticks.error = ValueError("no")
    await bench.process({}, periodic={**FIVE, "max_attempts": 1})
    await asyncio.sleep(16)
    assert bench.ticks.times == [5, 10, 15]
    assert bench.actions("job-failed") == ["job-failed"] * 3


async def test_attempts_of_a_run_do_not_hold_up_the_next(bench: Bench) -> None:
    """Each is a job of its own, with the time that it is for."""
    bench.ticks.error = ValueError("no")
    await bench.process({}, periodic={"every": 5, "max_attempts": 4})
    await asyncio.sleep(12.5)
    # Tried again after 1, 2 and 4 s.
    assert bench.ticks.times == [5, 5, 5, 10, 10, 5]


async def test_a_cancelled_run_is_left_out(bench: Bench) -> None:
    """An operator cancels one, or runs it before its time; the series goes on."""
    process = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(2)
    [pending] = await waiting(bench)
    await process.jobs.cancel(pending.id)
    await asyncio.sleep(5)
    assert bench.ticks.times == []
    [pending] = await waiting(bench)
    await process.jobs.run_now(pending.id)
    await asyncio.sleep(9)
    assert bench.ticks == [(10, 7), (15, 15)]


async def test_it_begins_once_the_store_can_be_reached(bench: Bench) -> None:
    """A process whose store is away starts, and needs nothing more."""
    process = await bench.process({}, periodic=FIVE, down=True)
    await asyncio.sleep(12)
    assert process.purgatory.is_open and not bench.ticks
    process.link.mend()
    await asyncio.sleep(14)
    assert bench.ticks.times == [20, 25] or bench.ticks.times == [15, 20, 25]


async def test_an_outage_costs_the_times_that_it_lasts(bench: Bench) -> None:
    """The run that waits catches up; the log names it once."""
    process = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(7)
    process.link.cut()
    await asyncio.sleep(60)
    process.link.mend()
    await asyncio.sleep(20)
    times = bench.ticks.times
    assert times[:2] == [5, 10] and times[-2:] == [80, 85] and times == sorted(set(times))
    assert not set(times[2:]) & set(range(15, 66))


async def test_a_process_that_dies_as_a_run_begins_takes_no_time_along(bench: Bench) -> None:
    """Others store the next run, and do the one that it had."""
    bench.ticks.seconds = 1
    processes = [await bench.process({}, periodic=FIVE) for _ in range(2)]
    for process in processes:
        # Once a run has begun, its process stores nothing more, and dies.
        process.link.on("Start", reply_s=0.1)
    await asyncio.sleep(10.05)
    [first] = [each for each in processes if each.link.count("Start", since_ms=now_ms() - 100)]
    await first.crash()
    await asyncio.sleep(20)
    assert set(bench.ticks.times) >= {5, 10, 15, 20, 25}
    assert len(bench.ticks) == len(set(bench.ticks.times))


async def test_a_new_interval_takes_the_place_of_the_old(bench: Bench) -> None:
    """At once, also if the run that waits is a month away; nothing of the old one is left."""
    old = await bench.process({}, periodic={"every": timedelta(days=30)})
    await asyncio.sleep(1)
    await bench.process({}, periodic={"every": 7, "phase": 3})
    await asyncio.sleep(1)
    [pending] = await waiting(bench)
    assert pending.deadline_ms - now_ms() <= 7_000
    await old.close()
    await asyncio.sleep(21)
    assert len(bench.ticks) == 3
    assert {(START_MS + round(at_s * 1000)) % 7_000 for at_s in bench.ticks.times} == {3_000}


async def test_of_two_versions_the_later_decides(bench: Bench) -> None:
    """While both run, in whichever order their runs begin; and back again, if that is deployed."""
    old = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(1)
    new = await bench.process({}, periodic={"every": 60})
    await asyncio.sleep(200)
    assert bench.ticks.times and all(at_s % 60 == 0 for at_s in bench.ticks.times)
    await old.close()
    count = len(bench.ticks)
    back = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(21)
    assert len(bench.ticks) - count >= 4
    await new.close()
    await asyncio.sleep(20)
    assert len(bench.ticks) - count >= 8
    assert len(set(bench.ticks.times)) == len(bench.ticks)
    await back.close()


@pytest.mark.parametrize("is_restart", [False, True])
async def test_the_version_that_stays_goes_on(bench: Bench, is_restart: bool) -> None:
    """Though a process of another one, a trial or one of before, was started last, and is gone."""
    rare = {"every": timedelta(days=30)}
    if is_restart:
        other = await bench.process({}, periodic=rare)
        await asyncio.sleep(10)
    await bench.process({}, periodic=FIVE)
    # At no time of a run, which would be repeated.
    await asyncio.sleep(8)
    if is_restart:
        await other.crash()
    other = await bench.process({}, periodic=rare)
    await asyncio.sleep(150)
    assert now_ms() - START_MS > 100_000 + 1_000 * bench.ticks.times[-1]
    await other.close()
    await asyncio.sleep(160)
    gone = len(bench.ticks)
    await asyncio.sleep(100)
    assert len(bench.ticks) - gone == 20
    assert len(set(bench.ticks.times)) == len(bench.ticks)


@pytest.mark.parametrize("ends", ["close", "crash"])
async def test_a_process_that_ends_as_a_run_begins_takes_no_time_along(
    bench: Bench, ends: str
) -> None:
    """Though nobody is there to store the next run, and the next time passes before one is."""
    often = {"every": timedelta(hours=8)}
    process = await bench.process({}, periodic=often, **SELDOM)
    await asyncio.sleep(1)
    [pending] = await waiting(bench)
    at_s = (pending.deadline_ms - START_MS) // 1_000
    rule: dict[str, Any] = {"ask_s": 0.02} if ends == "close" else {"error": ConnectionError}
    process.link.on("Add", **rule)
    await asyncio.sleep((pending.deadline_ms - now_ms()) / 1_000 + 0.01)
    assert bench.ticks.times == [at_s]
    await (process.crash() if ends == "crash" else process.close())
    assert len(await waiting(bench)) == (ends == "close")
    await asyncio.sleep(20 * 3_600)
    await bench.process({}, periodic=often, **SELDOM)
    await asyncio.sleep(60)
    # One of the two times that had no run, and then the next one.
    assert bench.ticks.times == [at_s, at_s + 8 * 3_600]
    [pending] = await waiting(bench)
    assert (pending.deadline_ms - START_MS) // 1_000 == at_s + 24 * 3_600


async def test_a_run_that_is_refused_is_in_no_other_ones_way(bench: Bench) -> None:
    """It is said once, and looked at again after a minute."""
    process = await bench.process({}, periodic=FIVE)
    process.purgatory.periodic("other", every=1)(bench.ticks.run)
    run = process.link.run

    async def refusing(steps: Sequence[Any]) -> list[Any]:
        names = [getattr(getattr(step, "spec", None), "handler", "") for step in steps]
        results = zip(names, await run(steps), strict=True)
        return [InvalidJobError("no") if name == "other" else each for name, each in results]

    process.link.run = refusing  # type: ignore[method-assign]
    await asyncio.sleep(300)
    assert set(range(10, 300, 5)) <= set(bench.ticks.times)
    assert bench.actions("periodic-refused") == ["periodic-refused"]


async def test_the_pause_of_one_series_costs_nothing_beside_another(bench: Bench) -> None:
    """Its run is not asked for again and again."""
    process = await bench.process({}, periodic={"every": 60})
    process.purgatory.periodic("other", every=1)(bench.ticks.run)
    await process.jobs.pause("tick")
    await asyncio.sleep(100)
    since_ms = now_ms()
    await asyncio.sleep(60)
    assert process.link.count("Add", since_ms=since_ms) < 80


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_series_of_another_service_waits_for_it(bench: Bench, is_known: bool) -> None:
    """For its interval and a day, and for longer if it is known to be handled elsewhere."""
    away = await bench.process({}, periodic={"every": timedelta(hours=6)}, **SELDOM)
    await asyncio.sleep(1)
    await away.close()
    [pending] = await waiting(bench)
    other = await bench.process({}, **SELDOM)
    other.purgatory.periodic("other", every=3_600)(bench.ticks.run)
    if is_known:
        other.purgatory.handled_elsewhere(["tick"])
    await asyncio.sleep((pending.deadline_ms - now_ms()) / 1_000 + (6 + 22) * 3_600)
    assert (await bench.job(pending)).is_undecided
    await asyncio.sleep(4 * 3_600)
    assert (await bench.job(pending)).is_undecided == is_known


async def test_a_series_that_is_no_longer_declared_ends(bench: Bench) -> None:
    """Its last run waits for a day beyond its time, and is then cancelled."""
    old = await bench.process({}, periodic=FIVE, **SELDOM)
    await asyncio.sleep(1)
    await old.close()
    [pending] = await waiting(bench)
    process = await bench.process({}, **SELDOM)
    process.periodic("other", every=3_600)(bench.ticks.run)
    await asyncio.sleep(23 * 3_600)
    assert pending.id in {job.id for job in await waiting(bench)}
    await asyncio.sleep(2.5 * 3_600)
    assert (await bench.job(pending)).state is JobState.CANCELLED


async def test_runs_need_not_overlap(bench: Bench) -> None:
    """With max_running=1 one that takes long delays the next, and those between have none."""
    bench.ticks.seconds = 12
    await bench.process({}, periodic={**FIVE, "max_running": 1})
    await asyncio.sleep(60)
    began = [at_s for _, at_s in bench.ticks]
    assert all(later - sooner >= 12 for sooner, later in pairwise(began))
    assert len(began) >= 4 and len(await waiting(bench)) == 1


async def test_a_paused_series_has_one_run_when_it_goes_on(bench: Bench) -> None:
    """However many times passed."""
    process = await bench.process({}, periodic=FIVE)
    await asyncio.sleep(6)
    await process.jobs.pause("tick")
    await asyncio.sleep(60)
    assert bench.ticks.times == [5]
    await process.jobs.resume("tick")
    await asyncio.sleep(10)
    assert bench.ticks.times == [5, 10, 70, 75]


async def test_it_may_be_deferred_by_hand(bench: Bench) -> None:
    """As any handler: that is no run of the series."""
    process = await bench.process({}, periodic={"every": 3_600})
    await process.defer("tick", delay=1)
    await asyncio.sleep(2)
    assert bench.ticks == [(1, 1)]


async def test_declared_while_it_is_open(bench: Bench) -> None:
    """It begins then; of the handler as of any other."""
    bench.database = OutboxDatabase()
    await bench.database.open()
    process = await bench.process({})
    await asyncio.sleep(7)
    tick = process.periodic(every=5)(bench.ticks.run)
    assert tick.name == "run"
    await asyncio.sleep(9)
    assert bench.ticks.times == [10, 15]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either every= or cron="),
        ({"every": 5, "cron": "* * * * *"}, "either every= or cron="),
        ({"every": 0.5}, "every is 0.5 and phase is 0"),
        ({"every": 5, "phase": 5}, "phase is 5"),
        ({"every": float("nan")}, "cannot convert float NaN"),
        ({"every": 5, "timezone": "Europe/Berlin"}, "timezone= is for cron="),
        ({"cron": "* * * * *", "phase": 1}, "phase= for every="),
        ({"every": 5, "max_running_per_key": 1}, "give max_running instead"),
        ({"cron": "0 6 * * mon-fry"}, "cron is '0 6 \\* \\* mon-fry': Bad day-of-week"),
        ({"cron": "0 0 30 2 *"}, "cron is '0 0 30 2 \\*'"),
        ({"cron": "0 0 6 * * *"}, "it has not five fields"),
        ({"cron": "@daily"}, "it has not five fields"),
        ({"cron": "0 6 * * *", "timezone": "Europe/Atlantis"}, "timezone is 'Europe/Atlantis'"),
        ({"cron": "0 6 * * *", "timezone": "../etc"}, "timezone is '../etc'"),
    ],
)
async def test_times_that_cannot_be(bench: Bench, options: Any, message: str) -> None:
    """Are errors where they are declared."""
    process = await bench.process({})
    with pytest.raises(ValueError, match=message):
        process.periodic("x", **options)(bench.ticks.run)
    with pytest.raises(TypeError, match="it has to take \\(job\\) only"):
        process.periodic("y", every=5)(bench.log)
    with pytest.raises(ValueError, match="1 to 256 characters"):
        process.periodic("y" * 240, every=5)(bench.ticks.run)
    assert process.handlers.own_names == ()
    with pytest.raises(NoJobStoreError):
        Purgatory().periodic(every=5)
