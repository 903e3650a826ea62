"""What every store of jobs promises: requests that are repeated add, replace and keep once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.job_errors import IdempotencyConflictError
from purgatory.jobs.model.spec import MAX_REQUESTS, JobSpec
from purgatory.jobs.model.steps import Added, AddStatus
from tests.cases import cases
from tests.contract.world import World

KEPT: dict[str, Any] = {"dedupe_key": "d", "on_conflict": "keep"}
REPLACED: dict[str, Any] = {"dedupe_key": "d", "on_conflict": "replace"}


def asked(world: World, payload: Any = None, name: Any = "r", **options: Any) -> JobSpec:
    """A job of a request with that idempotency key."""
    return world.spec("note", payload, idempotency_key=name, **options)


async def repeated(world: World, spec: Any) -> Added:
    """The result that a request has in each process, which is the same."""
    (here,), (there,) = await world.here.add([spec()]), await world.there.add([spec()])
    assert here == there and isinstance(here, Added)
    return here


@cases(
    "change",
    [{"payload": 2}, {"delay": 9}, {"dedupe_key": None}, {"dedupe_key": "e"}, {"keys": ["k"]}],
)
async def test_another_request_with_the_same_key_is_refused(
    world: World, change: dict[str, Any]
) -> None:
    """In each process; the error has the job, and nothing is stored."""
    options: dict[str, Any] = {"payload": 1, "dedupe_key": "d", "delay": 1}
    first = await world.add_spec(asked(world, **options))
    for store in (world.here, world.there):
        (refused,) = await store.add([asked(world, **(options | change))])
        assert isinstance(refused, IdempotencyConflictError)
        assert refused.job == first.job and "use a new key" in str(refused)
    assert (await world.here.counts()).waiting == 1


@pytest.mark.parametrize(
    ("options", "has_rival"), [({}, False), (KEPT, False), (KEPT, True), (REPLACED, True)]
)
async def test_requests_that_come_twice_at_once_count_once(
    world: World, options: dict[str, Any], has_rival: bool
) -> None:
    """In two processes, and twice in one batch."""
    for number in range(10):
        chosen = dict(options)
        if options:
            chosen["dedupe_key"] = f"d{number}"
        if has_rival:
            await world.add("note", "rival", dedupe_key=chosen["dedupe_key"])
        added = await asyncio.gather(
            *(
                store.add([asked(world, 1, f"r{number}", **chosen)] * copies)
                for store, copies in ((world.here, 1), (world.there, 2), (world.here, 2))
            )
        )
        results = [each for batch in added for each in batch]
        assert len({each.job.id for each in results if isinstance(each, Added)}) == 1
        assert sum(not each.is_repeat for each in results if isinstance(each, Added)) == 1
        assert len({each.status for each in results if isinstance(each, Added)}) == 1
    assert (await world.here.counts()).waiting == 10


async def test_a_request_is_known_as_long_as_its_job(world: World) -> None:
    """Also one that the job was kept for; pruned together, it may come again as something new."""
    first = await world.add_spec(asked(world, 1, **KEPT))
    assert (await world.add_spec(asked(world, 1, "s", **KEPT))).job == first.job
    await world.here.cancel(first.job.id)
    world.now_ms += 1
    assert (await repeated(world, lambda: asked(world, 1, "s", **KEPT))).status is AddStatus.KEPT
    assert await world.there.prune(finished_before_ms=world.now_ms, keep=0, limit=10) == 1
    for name in ("r", "s"):
        again = await world.add_spec(asked(world, 2, name))
        assert again.status is AddStatus.ADDED and not again.is_repeat


async def test_a_request_is_forgotten_with_a_corrupt_job(world: World) -> None:
    """A repeat adds it anew, and is known from then on."""
    first = await world.add_spec(asked(world, 1))
    if not await world.stores.corrupt(first.job.id):
        # Memory has no records.
        return
    again = await world.add_spec(asked(world, 1))
    assert again.status is AddStatus.ADDED and again.job.id != first.job.id
    assert await repeated(world, lambda: asked(world, 1)) == again._replace(is_repeat=True)


async def test_the_last_requests_of_a_job_are_known(world: World) -> None:
    """A job that is kept again and again would take memory without bounds."""
    job = await world.add(dedupe_key="d", delay=600)
    for number in range(MAX_REQUESTS + 3):
        world.now_ms += 1
        added = await world.add_spec(asked(world, 1, f"r{number}", **KEPT))
        assert (added.job, added.is_repeat) == (job, False)
    for number in range(MAX_REQUESTS + 2, 2, -1):
        assert (await world.add_spec(asked(world, 1, f"r{number}", **KEPT))).is_repeat
    for number in (0, 1, 2):
        assert not (await world.add_spec(asked(world, 1, f"r{number}", **KEPT))).is_repeat
