"""What every store of jobs promises: listeners, lists, history, and its lifetime."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import PurgatoryClosedError
from purgatory.jobs import Job, JobLimits, JobState, MemoryJobStore
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import HandlerState, JobCounts, JobFilter, OnFire, owned_dedupe_key
from purgatory.jobs.model.steps import Claim, Fire, Pause, WaitAgain
from purgatory.jobs.redis import store as redis_store
from purgatory.jobs.sql import store as sql_store
from purgatory.limits import MAX_JSON_DEPTH
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.world import LEASE_MS, START_MS, World
from tests.patience import PATIENCE_S


class Heard:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.changed: list[str] = []

    def on_due(self, due_ms: int) -> None:
        self.due.append(due_ms)

    def on_change(self, job_id: str) -> None:
        self.changed.append(job_id)


async def from_frames_down(frames: int, read: Callable[[], Awaitable[Any]]) -> Any:
    """Return what `read` returns when it is called from that many calls within each other."""
    return await (from_frames_down(frames - 1, read) if frames else read())


async def claim(store: ContractStore, *handlers: str) -> list[Job]:
    """What a worker with these handlers gets, which claims until there is nothing more."""
    jobs: list[Job] = []
    while True:
        step = Claim("w", within_ms=60_000, limit=100, lease_ms=LEASE_MS, handlers=handlers)
        [claimed] = await store.run([step])
        jobs += claimed.jobs
        if not claimed.is_cut and not claimed.jobs:
            return jobs


# Looking on


async def test_what_was_accepted_is_read_from_wherever_it_is_read(world: World) -> None:
    """A stack that is nearly full is no reason to quarantine a job, or to fail."""
    payload: Any = "x"
    for _ in range(MAX_JSON_DEPTH):
        payload = [payload]
    job = await world.add(delay=5, payload=payload)

    async def read() -> Any:
        [found] = await world.here.get([job.id])
        return found and found.payload

    for frames in (500, 800, 850):
        assert await from_frames_down(frames, read) == payload
    counts = await world.here.counts()
    assert (counts.waiting, counts.quarantined) == (1, 0)


async def test_a_database_with_very_many_jobs_does_not_count_them_by_handler(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have to read a row, or a record, for each; memory has the counts."""
    for reader in (sql_store, redis_store):
        monkeypatch.setattr(reader, "MAX_COUNTED", 2)
    for _ in range(2):
        await world.add()
    assert await world.here.handler_counts() == {HandlerState("note", JobState.WAITING): 2}
    await world.add()
    counts = await world.here.handler_counts()
    if isinstance(world.here, MemoryJobStore):
        assert counts == {HandlerState("note", JobState.WAITING): 3}
    else:
        assert counts is None


async def test_listeners_hear_what_is_due_soon(world: World) -> None:
    """Of each change here, once it is stored; of what is due beyond the horizon, not."""
    heard = Heard()
    stop = world.here.subscribe(heard)
    far = await world.add(delay=3_600, keys=["k"])
    assert heard.due == [] and set(heard.changed) == {far.id}
    near = await world.add(delay=2)
    assert heard.due == [near.due_ms]
    await world.here.fire([Fire("k", "0")], limit=1)
    assert heard.due == [near.due_ms, START_MS] and heard.changed[-1] == far.id
    stop()
    await world.add(delay=1)
    assert len(heard.due) == 2
    stop()


async def test_listeners_hear_of_others_where_it_says_so(world: World) -> None:
    """A job that another process adds is heard of without asking."""
    if not world.here.hears_others:
        return
    is_heard = asyncio.Event()
    heard = Heard()
    heard.on_due = lambda due_ms: is_heard.set()  # type: ignore[method-assign]  # an event
    stop = world.here.subscribe(heard)
    await world.there.add([world.spec(delay=2)])
    async with asyncio.timeout(PATIENCE_S):
        await is_heard.wait()
    stop()


async def test_jobs_are_found_by_their_concurrency_key(world: World) -> None:
    """As their owners gave it, in whatever state; after a replacement and a round, too."""
    far = {"delay": 3_600}
    mine = await world.add("a", concurrency_key="c", keys=["k"], delay=0)
    owned = await world.add("b", concurrency_key=owned_dedupe_key("c", "somebody"), **far)
    other = await world.add("a", concurrency_key="d", dedupe_key="x", **far)
    await world.add("a", keys=["c", "d"], **far)
    like_owned = await world.add("a", concurrency_key="~0123456789ABCDEF~c", **far)

    async def found(concurrency_key: str, **where: Any) -> set[str]:
        where["concurrency_key"] = concurrency_key
        page = await world.there.query(JobFilter(**where), limit=100)
        assert page.next is None
        return {job.id for job in page.jobs}

    assert await found("c") == {mine.id, owned.id}
    assert await found("c", handler="a") == await found("c", key="k") == {mine.id}
    assert await found("~0123456789ABCDEF~c") == {like_owned.id}
    assert await found("c", key="c") == await found("none") == set()
    await world.add("a", concurrency_key="c", dedupe_key="x", on_conflict="replace", **far)
    assert await found("d") == set()
    running = await world.start(await world.claim_one())
    deadline = Deadline(delay_ms=60_000)
    again = WaitAgain(running.claim, deadline, ("m",), 1, OnFire.RUN, None)
    assert isinstance((await world.here.run([again]))[0], Job)
    await world.here.cancel(owned.id)
    assert await found("c") == {mine.id, owned.id, other.id}
    assert await found("c", key="m") == {mine.id}
    await world.here.prune(finished_before_ms=world.now_ms + 1, keep=0, limit=10)
    assert await found("c") == {mine.id, other.id}


@pytest.mark.parametrize(
    "where",
    [
        JobFilter(),
        JobFilter(handler="h"),
        JobFilter(key="k"),
        JobFilter(concurrency_key="c", handler="h"),
        JobFilter(is_blocked=True),
    ],
)
async def test_pages_hold_each_job_once_the_highest_id_first(
    world: World, where: JobFilter
) -> None:
    """Also while others are added, behind the reader's back."""
    ids = []
    for number in range(12):
        world.now_ms += 1
        handler = "h" if number % 4 else "i"
        job = await world.add(handler, keys=["k"], concurrency_key="c", delay=number % 2 * 3_600)
        ids.append(job.id)
    await world.here.run([Pause("h")])
    await world.claim()
    seen: list[Job] = []
    after = None
    while True:
        page = await world.here.query(where, after=after, limit=5)
        assert len(page.jobs) <= 5
        seen += page.jobs
        after = page.next
        if after is None:
            break
        world.now_ms += 1
        await world.add("h", keys=["k"])
    expected = [job for job in await world.here.get(ids) if job is not None and where.matches(job)]
    assert seen == sorted(expected, key=lambda job: job.id, reverse=True)


# Cleaning up


async def test_a_corrupt_record_is_set_aside_and_the_rest_goes_on(world: World) -> None:
    """It is counted and kept; nothing that comes upon it fails."""
    bad = await world.add(delay=0, keys=["k"])
    good = await world.add(delay=0, keys=["k"])
    if not await world.stores.corrupt(bad.id):
        return
    assert [job.id for job in await world.claim()] == [good.id]
    assert await world.here.get([bad.id, good.id]) == [None, (await world.here.get([good.id]))[0]]
    page = await world.here.query(JobFilter(), limit=10)
    assert [job.id for job in page.jobs] == [good.id]
    assert (await world.fire("k")).run == (good.id,)
    assert await world.stores.quarantined() == [bad.id]
    counts = await world.there.counts()
    assert (counts.waiting, counts.quarantined) == (1, 1)


async def test_a_corrupt_record_of_another_handler_is_quarantined(world: World) -> None:
    """By whoever reads it; it is in nobody's way."""
    jobs = [await world.add("own", number, delay=0) for number in range(3)]
    assert await claim(world.there, "other") == []
    if not await world.stores.corrupt(jobs[1].id):
        return
    found = await claim(world.here, "own")
    assert {job.id for job in found} == {jobs[0].id, jobs[2].id}
    assert (await world.here.counts()).quarantined == 1
    assert await world.here.next_due_ms() is None


async def test_what_was_set_aside_is_kept_within_bounds(
    make_job_stores: MakeJobStores, request: pytest.FixtureRequest
) -> None:
    """The last few; all of them are counted, also those that were dropped."""
    name = request.node.name
    world = await World(make_job_stores, JobLimits(max_quarantined=3)).open()
    bad = [await world.add(payload="x" * 10_000) for _ in range(8)]
    for job in bad:
        if not await world.stores.corrupt(job.id):
            break
        assert await world.here.get([job.id]) == [None]
    else:
        kept = await world.stores.quarantined()
        # Of several shards, each keeps a share, and the last of its own.
        last = [job.id for job in bad[-3:]]
        assert kept == last or ("shards" in name and 0 < len(kept) <= 3 and last[-1] in kept)
        assert await world.here.counts() == JobCounts(quarantined=8)
    await world.close()


# Opening and closing


async def test_a_store_tells_its_time(world: World) -> None:
    """The clock that it was given."""
    world.now_ms += 5
    assert await world.here.now_ms() == START_MS + 5


async def test_a_store_says_what_is_wrong_with_its_setup(world: World) -> None:
    """In sentences."""
    for warning in await world.here.check():
        assert re.search(r"\w+ \w+", warning)


async def test_a_close_that_is_cancelled_goes_on(make_job_stores: MakeJobStores) -> None:
    """Whenever that is: those who asked are answered, and whoever closes again waits for it."""
    world = await World(make_job_stores).open()
    for turns in range(1, 9):
        store = await world.stores.connect()
        adding = [asyncio.ensure_future(store.add([world.spec()])) for _ in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(closing, return_exceptions=True)
            await asyncio.gather(*adding)
            await world.stores.disconnect(store)
    await world.close()


async def test_a_store_can_be_opened_and_closed_again(make_job_stores: MakeJobStores) -> None:
    """Its jobs are there."""
    world = await World(make_job_stores).open()
    job = await world.add()
    for _ in range(2):
        await world.here.close()
        with pytest.raises(PurgatoryClosedError):
            await world.here.counts()
        await world.here.open()
        assert await world.here.get([job.id]) == [job]
    await world.close()


async def test_a_closed_store_refuses(make_job_stores: MakeJobStores) -> None:
    """And closes twice."""
    world = await World(make_job_stores).open()
    store = world.here
    await store.close()
    await store.close()
    with pytest.raises(PurgatoryClosedError):
        await store.add([world.spec()])
    with pytest.raises(PurgatoryClosedError):
        await store.claim("w", within_ms=1, limit=1, lease_ms=1)
    await world.close()
