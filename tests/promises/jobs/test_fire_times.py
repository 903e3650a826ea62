"""Which jobs a pending fire decides: those that waited when its key fired, by the store's clock."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import OnFire
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import WaitAgain
from tests.promises.kit import HOUR_S, Bench, Process, now_ms


@pytest.fixture(params=["memory", "shared"])
def is_shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "shared")


async def add(bench: Bench, *, again: bool) -> str:
    """Add a job that waits on "k" from now on, for the first time or `again`."""
    keys, delay = (["first"], 0) if again else (["k"], HOUR_S)
    spec = JobSpec.of("note", wall_ms=now_ms(), delay=delay, keys=keys, on_fire="cancel")
    await bench.database.add([spec])
    if again:
        job = await bench.take(spec.id, start=True)
        hour = Deadline(delay_ms=int(HOUR_S) * 1000)
        await bench.database.run([WaitAgain(job.claim, hour, ("k",), 1, OnFire.CANCEL, None)])
    return spec.id


async def decided(bench: Bench, process: Process, *before_s: float, again: bool) -> list[bool]:
    """Return which jobs a fire decides that began to wait so long before it, or after it."""
    time = asyncio.get_running_loop().time
    jobs: dict[float, str] = {}
    fired_s = time() + 2
    # Without a job that waits already, there is nothing to decide.
    await add(bench, again=False)
    for each in sorted({*before_s, 0.0}, reverse=True):
        await asyncio.sleep(fired_s - each - time())
        if each:
            jobs[each] = await add(bench, again=again)
        else:
            process.link.cut()
            assert (await process.fire("k")).jobs_pending
    await asyncio.sleep(2)
    process.link.mend()
    await asyncio.sleep(30)
    found = [(await bench.job(jobs[each])).outcome is not None for each in before_s]
    assert not (await process.fire("k")).jobs_pending
    return found


@pytest.mark.parametrize("again", [False, True])
async def test_the_time_of_a_fire_is_exact(bench: Bench, is_shared: bool, again: bool) -> None:
    """Whoever began to wait before it is decided, and nobody after it."""
    process = await bench.process({}, shares_signals=is_shared)
    found = await decided(bench, process, 0.5, 0.002, -0.002, -0.5, again=again)
    assert found == [True, True, False, False]


@pytest.mark.parametrize(("again", "since_s"), [(False, -0.499), (True, 0.502)])
async def test_a_time_that_is_uncertain_by_a_second(
    bench: Bench, is_shared: bool, again: bool, since_s: float
) -> None:
    """The only reply was slow in both ways: no job may miss it, and none that waits again be hit.

    Two jobs are tried that began to wait 5 ms apart.
    """
    process = await bench.process({}, shares_signals=is_shared, down=True)
    process.link.mend()
    process.link.on("now_ms", ask_s=0.5, reply_s=0.5, times=1)
    await asyncio.sleep(5)
    assert await decided(bench, process, since_s, since_s - 0.005, again=again) == [True, False]


@pytest.mark.parametrize(("again", "since_s"), [(False, -1.5), (True, 1.1)])
async def test_a_store_that_was_never_reached(
    bench: Bench, is_shared: bool, again: bool, since_s: float
) -> None:
    """Its clock is not known, but that it is about that of the machine: no job may miss a fire."""
    process = await bench.process({}, shares_signals=is_shared, down=True)
    assert await decided(bench, process, since_s, again=again) == [True]
