"""Fires while the store of jobs is away: acknowledged at once, and decided when it is back."""

from __future__ import annotations

import asyncio

import pytest

from purgatory import Purgatory
from purgatory.jobs import (
    Again,
    JobContext,
    JobOutcome,
    JobsNotFiredError,
    JobState,
    StoreError,
    StoreUnavailableError,
    pending_fires,
)
from purgatory.jobs.model import (
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
)
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms
from tests.unit.jobs.worker.slow_store import SlowStore

HOUR_S = 3_600


@pytest.mark.parametrize(
    "error", [StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError]
)
async def test_a_fire_during_an_outage(
    purgatory: Purgatory, store: FailingJobStore, error: type[StoreError]
) -> None:
    """Whoever is parked is woken, and the job is decided once the store is back."""
    handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    parked = asyncio.create_task(purgatory.park("k", timeout=5))
    await asyncio.sleep(1)
    store.error, store.is_down = error, True
    fired = await purgatory.fire("k", 1)
    assert (fired.jobs, fired.jobs_pending) == (0, True)
    assert (await parked).value == 1
    store.is_down = False
    job = await handle.wait(30)
    assert (job.outcome, job.fired_json) == (JobOutcome.FIRED, "1")
    # Nothing is left of it: the store is asked again.
    assert not (await purgatory.fire("k", 2)).jobs_pending


async def test_a_reply_that_cannot_be_read(
    purgatory: Purgatory, store: FailingJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fires are tried again, also if no other comes."""
    handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    await asyncio.sleep(1)
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending

    async def unreadable() -> int:
        raise ValueError("not a number")

    monkeypatch.setattr(store, "now_ms", unreadable)
    store.is_down = False
    await asyncio.sleep(10)
    monkeypatch.undo()
    assert (await handle.wait(30)).fired_json == "1"


async def test_what_is_deferred_later_is_not_decided(
    purgatory: Purgatory, store: FailingJobStore
) -> None:
    """It waits for the next fire."""
    earlier = await purgatory.defer("note", delay=HOUR_S, keys=["k"], on_fire="cancel")
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending
    await asyncio.sleep(60)
    store.is_down = False
    later = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    await asyncio.sleep(60)
    assert (await earlier.get()).state is JobState.CANCELLED
    assert (await later.get()).outcome is None
    assert (await purgatory.fire("k", 2)).jobs == 1


async def test_a_job_that_was_acknowledged_here_does_not_miss_a_later_fire(
    purgatory: Purgatory, store: FailingJobStore
) -> None:
    """Though the store's clock was set back meanwhile, and another was acknowledged since."""
    handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    leap(-60_000)
    await purgatory.defer("note", delay=HOUR_S, keys=["other"])
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending
    store.is_down = False
    await asyncio.sleep(30)
    assert (await handle.get()).fired_json == "1"


async def test_the_first_fire_decides(purgatory: Purgatory, store: FailingJobStore) -> None:
    """Also if the second comes when the store is back already."""
    handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    await asyncio.sleep(1)
    store.is_down = True
    await purgatory.fire("k", 1)
    await asyncio.sleep(20)
    await purgatory.fire("k", 2)
    store.is_down = False
    assert (await purgatory.fire("k", 3)).jobs_pending
    assert (await handle.wait(30)).fired_json == "1"


async def test_a_key_without_jobs_is_pending_too(
    purgatory: Purgatory, store: FailingJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nobody can know that it has none; the store is not asked for each while it is away."""
    monkeypatch.setattr(store, "may_wait_on", lambda key: True)
    store.is_down = True
    assert (await purgatory.fire("a")).jobs_pending
    await asyncio.sleep(1)
    asked = store.asked
    assert all([(await purgatory.fire(f"b{number}")).jobs_pending for number in range(1_000)])
    assert store.asked == asked
    store.is_down = False
    await asyncio.sleep(30)
    assert not (await purgatory.fire("a")).jobs_pending


async def test_a_store_that_is_not_open_yet(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """Jobs of an earlier process are decided as soon as it is."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        job = await before.defer("note", delay=HOUR_S, keys=["k"], on_fire="cancel")
    store.is_down = True
    async with make_purgatory(jobs=store) as purgatory:
        await asyncio.sleep(1)
        assert (await purgatory.fire("k")).jobs_pending
        store.is_down = False
        await asyncio.sleep(30)
        assert (await purgatory.job(job.id).get()).outcome is JobOutcome.FIRED


async def test_there_is_room_for_so_many(
    purgatory: Purgatory, store: FailingJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it, the caller is told to fire again; the signal is kept all the same."""
    monkeypatch.setattr(pending_fires, "MAX_FIRES", 2)
    await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    cursor = purgatory.cursor("k")
    store.is_down = True
    await purgatory.fire("k")
    await purgatory.fire("k")
    with pytest.raises(JobsNotFiredError, match="fire it again"):
        await purgatory.fire("k", 3)
    outcomes = [await purgatory.park("k", timeout=0, cursor=cursor)]
    assert outcomes[0].status == "fired"
    store.is_down = False
    await asyncio.sleep(30)
    assert (await purgatory.job_counts()).done == 1


async def test_what_was_not_decided_is_said_at_the_end(
    store: FailingJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """In memory, it is lost with the process."""
    async with make_purgatory(jobs=store) as purgatory:
        store.is_down = True
        purgatory.handled_elsewhere(["note"])
        store.is_down = False
        await purgatory.defer("note", delay=HOUR_S, keys=["k"])
        store.is_down = True
        await purgatory.fire("k")
    assert "the jobs of 1 fires were not decided" in caplog.text
    store.is_down = False


@pytest.fixture
async def store() -> SlowStore:
    """A store by the wall clock of the loop."""
    leap(1_800_000_000_000)
    return SlowStore(now_ms)


async def test_a_store_that_hangs(purgatory: Purgatory, store: SlowStore) -> None:
    """The fire is acknowledged after a second; what is decided twice is decided once."""
    handle = await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    await asyncio.sleep(1)
    store.fire_s = 20
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    assert (await purgatory.fire("k", 1)).jobs_pending
    assert loop.time() - began_at == pytest.approx(1, abs=0.1)
    assert (await handle.wait(60)).fired_json == "1"
    await asyncio.sleep(30)
    assert (await purgatory.job_counts()).done == 1


async def test_pending_fires_hold_up_their_own_keys_only(
    purgatory: Purgatory, store: SlowStore
) -> None:
    """Others are decided at once when the store is back, however many are pending."""
    await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    await purgatory.defer("note", delay=HOUR_S, keys=["other"])
    await asyncio.sleep(1)
    store.is_down = True
    for number in range(3):
        assert (await purgatory.fire("k", number)).jobs_pending
    store.query_s = 20
    await asyncio.sleep(1)
    store.is_down = False
    await asyncio.sleep(15)
    assert (await purgatory.fire("other")).jobs == 1
    assert (await purgatory.fire("k", 3)).jobs_pending
    store.query_s = 0
    await asyncio.sleep(60)
    assert not (await purgatory.fire("k")).jobs_pending


async def test_what_the_store_refuses_is_not_pending(
    purgatory: Purgatory, store: SlowStore
) -> None:
    """It would be refused again."""
    await purgatory.defer("note", delay=HOUR_S, keys=["k"])
    store.refuses = True
    with pytest.raises(JobsNotFiredError, match="too odd"):
        await purgatory.fire("k", 1)


async def test_a_fire_does_not_decide_the_next_round(
    make_purgatory: Make, store: SlowStore
) -> None:
    """It was pending, and decided its round after all: the next one waits for the next fire."""
    purgatory = make_purgatory(jobs=store)
    rounds: list[int] = []

    @purgatory.handler("again")
    async def again(job: JobContext) -> Again:
        rounds.append(job.round)
        await asyncio.sleep(0.1)
        return job.again(delay=HOUR_S)

    async with purgatory:
        handle = await purgatory.defer("again", delay=HOUR_S, keys=["k"])
        await asyncio.sleep(1)
        store.reply_s = 2
        assert (await purgatory.fire("k", 1)).jobs_pending
        await asyncio.sleep(60)
        assert (rounds, (await handle.get()).round) == ([0], 1)
        store.reply_s = 0
        assert (await purgatory.fire("k", 2)).jobs == 1


async def test_a_locked_job_holds_up_no_other_fire(
    purgatory: Purgatory, store: SlowStore, log: Log
) -> None:
    """Neither those that are pending, nor those that come; it is decided once it is free."""
    locked = await purgatory.defer("note", delay=HOUR_S, keys=["locked"], on_fire="cancel")
    other = await purgatory.defer("note", delay=HOUR_S, keys=["other"], on_fire="cancel")
    await asyncio.sleep(1)
    store.is_down = True
    for key in ("locked", "other", "locked"):
        assert (await purgatory.fire(key)).jobs_pending
    store.locked_ids = {locked.id}
    store.is_down = False
    await asyncio.sleep(30)
    assert (await other.get()).state is JobState.CANCELLED
    assert (await locked.get()).outcome is None
    await purgatory.defer("note", delay=HOUR_S, keys=["third"])
    assert (await purgatory.fire("third")).jobs == 1
    store.locked_ids = set()
    await asyncio.sleep(30)
    assert (await locked.get()).state is JobState.CANCELLED
    assert not (await purgatory.fire("locked")).jobs_pending


async def test_many_locked_jobs_hold_up_no_other_fire(
    purgatory: Purgatory, store: SlowStore
) -> None:
    """Neither the first time, which finds them, nor later: they are tried a few at a time."""
    keys = [f"locked{number}" for number in range(150)]
    locked = [await purgatory.defer("note", delay=HOUR_S, keys=[key]) for key in keys]
    other = await purgatory.defer("note", delay=HOUR_S, keys=["other"])
    await asyncio.sleep(1)
    store.is_down = True
    for key in [*keys, "other"]:
        assert (await purgatory.fire(key)).jobs_pending
    store.locked_ids = {job.id for job in locked}
    store.is_down = False
    await asyncio.sleep(120)
    assert (await other.get()).outcome is JobOutcome.FIRED
    later = await purgatory.defer("note", delay=HOUR_S, keys=["later"])
    await asyncio.sleep(1)
    store.is_down = True
    assert (await purgatory.fire("later")).jobs_pending
    store.is_down = False
    await asyncio.sleep(30)
    assert (await later.get()).outcome is JobOutcome.FIRED
    store.locked_ids = set()
    await asyncio.sleep(300)
    outcomes = [(await job.get()).outcome for job in locked]
    assert outcomes == [JobOutcome.FIRED] * 150


async def test_a_fire_in_a_drain_is_not_acknowledged_as_pending(
    make_purgatory: Make, store: SlowStore
) -> None:
    """Nobody is left who would decide its jobs; and no task outlives the purgatory."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handled_elsewhere(["note"])
    async with purgatory:
        await purgatory.defer("note", delay=HOUR_S, keys=["k"])
        service = purgatory.job_service()
        await service.begin_drain()
        store.is_down = True
        with pytest.raises(StoreError):
            await service.fire("k", 1, 1_000)
    store.is_down = False
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "purgatory-pending-fires" not in names


async def test_many_fires_are_decided_together(purgatory: Purgatory, store: SlowStore) -> None:
    """A backlog of fires on many keys takes less time than it took to come about."""
    keys = [f"k{number}" for number in range(200)]
    handles = [await purgatory.defer("note", delay=HOUR_S, keys=[key]) for key in keys]
    both = await purgatory.defer("note", delay=HOUR_S, keys=["k7", "k3"])
    store.is_down = True
    for number, key in enumerate(keys):
        assert (await purgatory.fire(key, number)).jobs_pending
    store.query_s = 0.2
    store.is_down = False
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    jobs = [await handle.wait(60) for handle in handles]
    # 40 s, one after another.
    assert loop.time() - began_at < 15
    assert [job.fired_value for job in jobs] == list(range(200))
    # In the order of the fires, also across keys.
    assert (await both.wait(60)).fired_key == "k3"


async def test_a_slow_reply_is_no_clock(purgatory: Purgatory, store: SlowStore) -> None:
    """A job that another process deferred half a second before the fire is decided all the same."""
    await asyncio.sleep(1)
    spec = purgatory.job_spec("note", delay=HOUR_S, keys=["k"])
    await store.add([spec])
    await asyncio.sleep(0.5)
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending
    store.clock_s[:] = [0.0, 2.0, 3.0]
    store.is_down = False
    job = await purgatory.job(spec.id).wait(60)
    assert (job.outcome, job.fired_json) == (JobOutcome.FIRED, "1")


async def test_the_clock_of_a_reply_that_came_back_fast(
    purgatory: Purgatory, store: SlowStore
) -> None:
    """However long its request took; all five are slow in one way."""
    await asyncio.sleep(1)
    spec = purgatory.job_spec("note", delay=HOUR_S, keys=["k"])
    await store.add([spec])
    await asyncio.sleep(0.5)
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending
    store.ask_s[:] = [0.0, 0.0, 2.0, 0.0, 0.0]
    store.clock_s[:] = [1.0, 1.0, 0.0, 1.0, 1.0]
    store.is_down = False
    job = await purgatory.job(spec.id).wait(60)
    assert (job.outcome, job.fired_json) == (JobOutcome.FIRED, "1")


async def test_replies_that_are_all_slow(purgatory: Purgatory, store: SlowStore) -> None:
    """A job that was stored just before the fire must not miss it, whatever the clock was then."""
    await asyncio.sleep(1)
    spec = purgatory.job_spec("note", delay=HOUR_S, keys=["k"])
    await store.add([spec])
    await asyncio.sleep(0.01)
    store.is_down = True
    assert (await purgatory.fire("k", 1)).jobs_pending
    store.ask_s[:] = [0.5] * 5
    store.clock_s[:] = [0.5] * 5
    store.is_down = False
    job = await purgatory.job(spec.id).wait(60)
    assert (job.outcome, job.fired_json) == (JobOutcome.FIRED, "1")
