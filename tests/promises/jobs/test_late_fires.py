"""Fires while the database is away: acknowledged at once, decided later, in their order.

Each test runs for signals in memory, where this process decides, and for shared ones, where the
fires are recorded and any process decides.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.job_errors import (
    StoreBusyError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
)
from purgatory.jobs import (
    JobOutcome,
    JobsNotFiredError,
    StoreError,
    StoreUnavailableError,
)
from tests.promises.kit import HOUR_S, Bench, Process, loop_clock


@pytest.fixture(params=["memory", "shared"])
def is_shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "shared")


@pytest.fixture
async def process(bench: Bench, is_shared: bool) -> Process:
    return await bench.process(shares_signals=is_shared)


async def wait_on(process: Process, *keys: str, **options: Any) -> Any:
    return await process.defer("note", delay=HOUR_S, keys=list(keys), **options)


async def value(bench: Bench, job: Any) -> str | None:
    """The value that has decided a job."""
    stored = await bench.job(job)
    assert stored.outcome in (None, JobOutcome.FIRED)
    return stored.fired_json


@pytest.mark.parametrize(
    "error", [StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError]
)
async def test_a_fire_during_an_outage(
    bench: Bench, process: Process, error: type[Exception]
) -> None:
    """Whoever is parked is woken, and the job is decided once the store is back; said once."""
    job = await wait_on(process, "k")
    parked = asyncio.create_task(process.park("k", timeout=5))
    await asyncio.sleep(1)
    process.link.cut(error("no"))
    fired = await process.fire("k", 1)
    assert (fired.jobs, fired.jobs_pending) == (0, True) and (await parked).is_fired
    await asyncio.sleep(20)
    process.link.mend()
    assert (await job.wait(30)).fired_json == "1"
    assert bench.actions("fires-pending", "fires-decided") == ["fires-pending", "fires-decided"]
    assert bench.records.kept == []
    # Nothing is left of it: the store is asked again.
    assert not (await process.fire("k", 2)).jobs_pending


async def test_a_store_that_takes_more_than_a_second(bench: Bench, process: Process) -> None:
    """The caller does not wait for it, and the job is decided once."""
    job = await wait_on(process, "k")
    process.link.on("Fire", ask_s=3, times=1)
    assert (await process.fire("k", 1)).jobs_pending
    assert (await job.wait(30)).fired_json == "1"


async def test_the_first_fire_decides(bench: Bench, process: Process) -> None:
    """Also if later ones come when the store is back already; other keys do not wait for it."""
    job, other = await wait_on(process, "k"), await wait_on(process, "other")
    await asyncio.sleep(1)
    process.link.cut()
    await process.fire("k", 1)
    await asyncio.sleep(20)
    await process.fire("k", 2)
    process.link.mend()
    assert (await process.fire("k", 3)).jobs_pending
    assert (await job.wait(30)).fired_json == "1"
    assert (await process.fire("other", 4)).jobs == 1 and await value(bench, other) == "4"


@pytest.mark.parametrize("late_s", [0.01, 60])
async def test_what_is_deferred_later_is_not_decided(
    bench: Bench, process: Process, late_s: float
) -> None:
    """It waits for the next fire; by another process, which is not cut off."""
    other = await bench.process({}, shares_signals=True)
    earlier = await wait_on(process, "k", on_fire="cancel")
    process.link.cut()
    await process.fire("k", 1)
    await asyncio.sleep(late_s)
    later = await wait_on(other, "k")
    process.link.mend()
    await asyncio.sleep(60)
    assert (await value(bench, earlier), await value(bench, later)) == ("1", None)


async def test_a_clock_that_was_set_back(bench: Bench, process: Process) -> None:
    """A job that was acknowledged here before the fire does not miss it."""
    job = await wait_on(process, "k")
    loop_clock().set_wall(loop_clock().wall_ms() - 600_000)
    # The worker has noticed by then.
    await asyncio.sleep(60)
    process.link.cut()
    await process.fire("k", 1)
    process.link.mend()
    await asyncio.sleep(30)
    assert await value(bench, job) == "1"


async def test_a_fire_does_not_decide_the_next_round(bench: Bench, is_shared: bool) -> None:
    """The reply to it was lost; the job waits again because of that fire, and for another one."""

    async def again(job: Any) -> Any:
        return job.again(delay=HOUR_S, keys=["k"])

    one = await bench.process({"note": again}, shares_signals=is_shared)
    job = await wait_on(one, "k")
    one.link.on("Fire", is_lost=True, times=1)
    assert (await one.fire("k", 1)).jobs_pending
    await asyncio.sleep(30)
    stored = await bench.job(job)
    assert (stored.round, stored.outcome) == (1, None)


@pytest.mark.parametrize("count", [10, 40])
async def test_locked_jobs_hold_up_no_other_fire(
    bench: Bench, process: Process, count: int
) -> None:
    """Nor each other; they are tried again less and less often, and the log says so."""
    locked = [await wait_on(process, f"l{n}") for n in range(count)]
    free = [await wait_on(process, f"f{n}") for n in range(count)]
    ids = {job.id for job in locked}
    process.link.cut()
    for n in range(count):
        await process.fire(f"l{n}", n)
        await process.fire(f"f{n}", n)
    process.link.mend()
    error = StoreBusyError("another transaction has a job locked")
    rule = process.link.on("FireJob", ask_s=5, error=error, only=lambda step: step.id in ids)
    await asyncio.sleep(12 if count == 10 else 60)
    assert [await value(bench, job) for job in free] == [str(n) for n in range(count)]
    assert {await value(bench, job) for job in locked} == {None}
    assert "pending-fire-locked" in bench.actions()
    # Those that come later wait behind them.
    assert (await process.fire("l0", "later")).jobs_pending
    rule.times = 0
    await asyncio.sleep(60)
    assert [await value(bench, job) for job in locked] == [str(n) for n in range(count)]


async def test_many_fires_are_decided_in_few_requests(bench: Bench, process: Process) -> None:
    """A hundred in a request, and of many jobs on a key all."""
    jobs = [await wait_on(process, f"k{n}") for n in range(150)]
    many = [await wait_on(process, "many", on_fire="cancel") for _ in range(600)]
    process.link.cut()
    for n in range(150):
        await process.fire(f"k{n}", n)
    await process.fire("many", 1)
    process.link.mend()
    process.link.asked.clear()
    await asyncio.sleep(30)
    assert [await value(bench, job) for job in jobs] == [str(n) for n in range(150)]
    assert {await value(bench, job) for job in many} == {"1"}
    assert process.link.count("query") <= 160


async def test_it_is_tried_less_and_less_often(
    bench: Bench, is_shared: bool, exact_pauses: None
) -> None:
    """Up to every five seconds; the fires of an outage do not ask the store at all."""
    process = await bench.process({}, hears=False, shares_signals=is_shared)
    tries = ((0.08, 0), (0.02, 1), (0.2, 2), (0.4, 3), (0.8, 4), (19.9, 9))
    # Once more, and before the first pruning, which reads the clock, too.
    for outages, expected in ((1, tries), (2, tries[:5])):
        process.link.cut()
        # Nobody can know that no job waits.
        assert (await process.fire("k")).jobs_pending
        await asyncio.sleep(0.01)
        process.link.asked.clear()
        for after_s, count in expected:
            await asyncio.sleep(after_s)
            assert process.link.count("query") == count
        for n in range(100):
            assert (await process.fire(f"b{n}")).jobs_pending
        assert process.link.count("Fire") == 0
        process.link.mend()
        await asyncio.sleep(6)
        said = ["fires-pending", "fires-decided"] * outages
        assert bench.actions("fires-pending", "fires-decided") == said
        assert not (await process.fire("k")).jobs_pending


async def test_a_locked_job_is_tried_less_and_less_often(
    exact_pauses: None, bench: Bench, process: Process
) -> None:
    """However many fires wait for it, and it is said each time; a try takes five seconds here."""
    for locks in (1, 2):
        job = await wait_on(process, "k", on_fire="cancel")
        process.link.cut()
        for n in range(120):
            await process.fire("k", n)
        process.link.mend()
        process.link.on("FireJob", ask_s=5, error=StoreBusyError("locked"))
        bench.caplog.clear()
        for after_s, tries in ((4, 0), (46, 7), (550, 62))[: 4 - locks]:
            await asyncio.sleep(after_s)
            assert len(bench.actions("pending-fire-locked")) == tries
            await wait_on(process, "other")
            assert (await process.fire("other")).jobs == 1
        process.link.mend()
        await asyncio.sleep(20)
        assert await value(bench, job) == "0"


async def test_an_outage_amid_the_decision_of_many_jobs(
    exact_pauses: None, bench: Bench, process: Process
) -> None:
    """None is dropped: what is left is decided as soon as the store is back."""
    jobs = [await wait_on(process, "k", on_fire="cancel") for _ in range(501)]
    process.link.cut()
    await process.fire("k", 1)
    process.link.mend()
    process.link.on("FireJob", error=StoreUnavailableError("gone"), times=1)
    await asyncio.sleep(0.5)
    assert {await value(bench, job) for job in jobs} == {"1"}


async def test_what_the_store_refuses_is_not_pending(bench: Bench, process: Process) -> None:
    """It would be refused again."""
    await wait_on(process, "k")
    await asyncio.sleep(1)
    process.link.on("Fire", error=StoreError("the value is too odd"))
    with pytest.raises(JobsNotFiredError, match="too odd"):
        await process.fire("k", 1)


async def test_a_fire_in_a_drain(bench: Bench, is_shared: bool) -> None:
    """It is not acknowledged as pending in memory: nobody is left who would decide its jobs."""
    process = await bench.process(shares_signals=is_shared, grace_ms=10_000)
    await wait_on(process, "k")
    bench.log.seconds = 5
    await process.defer("note", delay=0)
    await asyncio.sleep(1)
    draining = asyncio.create_task(process.drain())
    await asyncio.sleep(1)
    process.link.cut()
    if is_shared:
        assert (await process.fire("k")).jobs_pending
    else:
        with pytest.raises(JobsNotFiredError):
            await process.fire("k")
    process.link.mend()
    await draining


@pytest.mark.parametrize("bound", ["MAX_FIRES", "MAX_BYTES"])
async def test_there_is_room_for_so_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """In memory: beyond it, the caller is told to fire again; decided ones make room."""
    monkeypatch.setattr(f"purgatory.jobs.owed_fires.{bound}", 2 if bound == "MAX_FIRES" else 100)
    process = await bench.process()
    await wait_on(process, "k")
    process.link.cut()
    await process.fire("k", 1)
    await process.fire("k", 2)
    with pytest.raises(JobsNotFiredError, match="fire it again"):
        await process.fire("k", 3)
    process.link.mend()
    await asyncio.sleep(30)
    await wait_on(process, "k")
    process.link.cut()
    assert (await process.fire("k", 1)).jobs_pending


async def test_an_error_that_nobody_expects(bench: Bench, process: Process) -> None:
    """It is logged, and tried again after a pause, which no fire ends."""
    job = await wait_on(process, "k")
    await asyncio.sleep(1)
    process.link.on("Fire", error=StoreUnavailableError("gone"), times=1)
    process.link.on("query", error=ValueError("not a number"))
    await process.fire("k", 1)
    await asyncio.sleep(2)
    await process.fire("k", 2)
    await asyncio.sleep(2)
    assert bench.actions("pending-fires-failed") == ["pending-fires-failed"]
    process.link.mend()
    await asyncio.sleep(0.9)
    assert await value(bench, job) is None
    await asyncio.sleep(0.2)
    assert await value(bench, job) == "1"


async def test_what_is_left_at_the_end(bench: Bench, process: Process, is_shared: bool) -> None:
    """In memory it is lost, and said; recorded, the next process decides it when it starts."""
    job = await wait_on(process, "k")
    process.link.cut()
    await process.fire("k", 1)
    await process.purgatory.close()
    assert bench.actions("fires-lost") == ([] if is_shared else ["fires-lost"])
    await bench.process({}, shares_signals=True)
    await asyncio.sleep(1)
    assert await value(bench, job) == ("1" if is_shared else None)


async def test_a_store_that_is_not_open_yet(bench: Bench, is_shared: bool) -> None:
    """Jobs of an earlier process are decided as soon as it is."""
    job = await wait_on(await bench.process({}), "k", on_fire="cancel")
    process = await bench.process(shares_signals=is_shared, down=True)
    await asyncio.sleep(1)
    assert (await process.fire("k", 1)).jobs_pending
    process.link.mend()
    await asyncio.sleep(30)
    assert await value(bench, job) == "1"


async def test_the_end_of_a_job_is_told(bench: Bench, process: Process) -> None:
    """Of one that the fire has cancelled, once; of one that runs, when it has run."""
    runs = await wait_on(process, "k")
    job = await wait_on(process, "k", on_fire="cancel")
    process.link.cut()
    await process.fire("k", 1)
    process.link.mend()
    await asyncio.sleep(30)
    assert process.ends == [(job.id, "cancelled"), (runs.id, "done")]


# What other processes have recorded


@pytest.fixture
async def sharing(bench: Bench) -> Process:
    return await bench.process(shares_signals=True)


async def test_what_others_left_is_looked_for_every_five_seconds(
    bench: Bench, sharing: Process
) -> None:
    """And decided, if the jobs were there before."""
    job = await wait_on(sharing, "k")
    await asyncio.sleep(2)
    bench.record("k", age_ms=1_000)
    later = await wait_on(sharing, "k")
    await asyncio.sleep(5.1)
    assert (await value(bench, job), await value(bench, later)) == ("1", None)
    reads = bench.records.reads
    await asyncio.sleep(100)
    assert 19 <= bench.records.reads - reads <= 21


DAMAGED: tuple[bytes, ...] = (
    b"",
    b"\xff",
    b"[]",
    b"[" * 100_000,
    b'["k"]',
    b'["k", 7, 0, 0]',
    b'["", "1", 0, 0]',
    b'["k", "{", 0, 0]',
    b'["k", "NaN", 0, 0]',
    b'["k", "1\\n\\nevent: x", 0, 0]',
    b'["k", "%b", 0, 0]' % (b"[" * 100_000),
    b'["k", "1", 0]',
    b'["k", "1", "now", 0]',
    b'["k", "1", 0, 1.5]',
    b'["k", "1", true, 0]',
    b'["k", "1", 0, %b]' % (b"9" * 300),
)


async def test_what_is_damaged_is_dropped_and_said(bench: Bench, sharing: Process) -> None:
    """It is not in the way of those behind it; the log has its size, and not its content."""
    job = await wait_on(sharing, "k")
    await asyncio.sleep(0.1)
    bench.records.kept += DAMAGED
    bench.record("k", 7)
    await asyncio.sleep(6)
    assert bench.records.kept == [] and await value(bench, job) == "7"
    assert bench.actions("pending-fire-damaged") == ["pending-fire-damaged"] * len(DAMAGED)
    assert '"k"' not in bench.caplog.text and "5 bytes (ValueError)" in bench.caplog.text


async def test_more_records_than_are_read_at_once(bench: Bench, sharing: Process) -> None:
    """Those that wait for a lock are skipped."""
    jobs = [await wait_on(sharing, f"k{n}") for n in range(250)]
    ids = {job.id for job in jobs[:120]}
    error = StoreBusyError("locked")
    rule = sharing.link.on("FireJob", error=error, only=lambda step: step.id in ids)
    await asyncio.sleep(1)
    for n in range(250):
        bench.record(f"k{n}", n)
    await asyncio.sleep(20)
    assert [await value(bench, job) for job in jobs[120:]] == [str(n) for n in range(120, 250)]
    rule.times = 0
    await asyncio.sleep(60)
    assert [await value(bench, job) for job in jobs] == [str(n) for n in range(250)]


async def test_what_cannot_be_recorded_is_in_memory(bench: Bench, sharing: Process) -> None:
    """And said; it is decided when the store is back."""
    job = await wait_on(sharing, "k")
    sharing.link.cut()
    bench.records.is_full = True
    assert (await sharing.fire("k", 1)).jobs_pending
    assert bench.actions("fire-pending") == ["fire-pending"]
    sharing.link.mend()
    assert (await job.wait(30)).fired_json == "1"
