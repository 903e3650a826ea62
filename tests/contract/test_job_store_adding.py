"""What every store of jobs promises: adding, bounds, and dedupe keys."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from purgatory.jobs import DuplicateJobError, InvalidDeadlineError, Job, JobLimits
from purgatory.jobs.model import (
    Added,
    AddStatus,
    Misfire,
    OnFire,
    StoreFullError,
)
from tests.cases import cases
from tests.contract.job_stores import MakeJobStores
from tests.contract.world import START_MS, World
from tests.nightly import IN_FULL

pytestmark = IN_FULL

AWKWARD = {"text": "ß\u2028\x00\U0001f600'\"\\", "n": 2**60, "x": [1.5, None, True, {}]}


async def test_a_job_is_stored_as_it_was_asked_for(world: World) -> None:
    """Everything comes back as it was given, from another process too."""
    spec = world.spec(
        "send-\u00e4", AWKWARD, delay=1.5, keys=["b", "a", "b"], on_fire="cancel",
        dedupe_key="once \u20ac", owner="0f", max_attempts=3, misfire="skip", ceiling=10,
    )  # fmt: skip
    added = await world.add_spec(spec)
    assert added.status is AddStatus.ADDED
    assert added.job == await world.job(spec.id) == Job(
        id=spec.id, handler="send-\u00e4", payload_json=spec.payload_json,
        deadline_ms=START_MS + 1_500, due_ms=START_MS + 1_500, created_ms=START_MS,
        keys=("b", "a"), on_fire=OnFire.CANCEL, dedupe_key="once \u20ac", owner="0f",
        max_attempts=3, misfire=Misfire.SKIP, ceiling_ms=START_MS + 10_000,
    )  # fmt: skip
    assert added.job.payload == AWKWARD


async def test_each_of_a_batch_is_acknowledged_or_refused_by_itself(world: World) -> None:
    """What is wrong with one is not held against the others; results are in order."""
    late = world.spec(at=datetime(2020, 1, 1, tzinfo=UTC))
    specs = [world.spec(dedupe_key="d"), late, world.spec(dedupe_key="d"), world.spec()]
    first, second, third, fourth = await world.here.add(specs)
    assert isinstance(first, Added) and isinstance(fourth, Added)
    assert isinstance(second, InvalidDeadlineError)
    assert isinstance(third, DuplicateJobError) and third.job == first.job
    assert await world.here.get([spec.id for spec in specs]) == [
        first.job, None, None, fourth.job,
    ]  # fmt: skip


async def test_callers_at_the_same_time_each_get_their_own(world: World) -> None:
    """Group commit mixes nothing up, and one who stops waiting takes nothing from the others."""
    specs = [world.spec("note", number) for number in range(200)]
    tasks = [asyncio.ensure_future(world.here.add([spec])) for spec in specs]
    tasks[7].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for number, (spec, result) in enumerate(zip(specs, results, strict=True)):
        if number != 7:
            assert isinstance(result, list)
            (added,) = result
            assert isinstance(added, Added)
            assert added.job.id == spec.id and added.job.payload == number
    # Its job may be there or not, as for an answer that was lost.
    assert (await world.here.counts()).waiting in (199, 200)


@cases(
    "at, complaint",
    [
        (timedelta(minutes=-2), "in the past"),
        (timedelta(days=3_660), "ahead"),
    ],
)
async def test_a_deadline_is_judged_by_the_stores_clock(
    world: World, at: timedelta, complaint: str
) -> None:
    """Past and too far ahead are refused, and the error says how much."""
    moment = datetime.fromtimestamp(START_MS / 1_000, UTC) + at
    refused = await world.try_add(world.spec(at=moment))
    assert isinstance(refused, InvalidDeadlineError)
    assert complaint in str(refused)


async def test_a_deadline_a_little_in_the_past_is_now(world: World) -> None:
    """Clocks differ a little."""
    moment = datetime.fromtimestamp(START_MS / 1_000, UTC) - timedelta(seconds=1)
    assert (await world.add(at=moment)).deadline_ms == START_MS


async def test_a_full_store_refuses_and_forgets_nothing(make_job_stores: MakeJobStores) -> None:
    """The error names the limit; what waits stays, and there is room again when one is done."""
    world = await World(make_job_stores, JobLimits(max_waiting=2)).open()
    first = await world.add(dedupe_key="d")
    await world.add()
    refused = await world.try_add(world.spec())
    assert isinstance(refused, StoreFullError) and "max_waiting is 2" in str(refused)
    # Neither of these needs room.
    assert (await world.add_spec(world.spec(dedupe_key="d", on_conflict="keep"))).job == first
    await world.add_spec(world.spec(dedupe_key="d", on_conflict="replace"))
    await world.here.cancel(first.id)
    await world.add()
    await world.close()
