"""Which jobs a pending fire decides: those that waited when its key fired, by the store's clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs.model import Deadline, JobSpec, OnFire, WaitAgain
from purgatory.jobs.pending_fires import SAMPLES
from tests.promises.kit import HOUR_S, Bench, Process, now_ms

# Of five replies, the third request arrived at once, and the fourth reply came back at once.
WAYS_S = [(0.5, 0.5), (0.5, 0.5), (0.0, 0.5), (0.5, 0.0), (0.5, 0.5)]


@pytest.fixture(params=["memory", "shared"])
def is_shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "shared")


@pytest.fixture
async def process(bench: Bench, is_shared: bool) -> Process:
    """Without handlers, so that only pending fires read the store's clock."""
    return await bench.process({}, shares_signals=is_shared)


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


async def decided(
    bench: Bench, process: Process, *before_s: float, again: bool, slow: str = "", ways_s: Any = ()
) -> list[bool]:
    """Return which jobs a fire decides that began to wait so long before it, or after it.

    The next readings of the clocks of what is `slow` take `ways_s`, request and reply.
    """
    time = asyncio.get_running_loop().time
    jobs: dict[float, str] = {}
    fired_s = time() + 1
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
    for ask_s, reply_s in ways_s if "store" in slow else ():
        process.link.on("now_ms", ask_s=ask_s, reply_s=reply_s, times=1)
    bench.records.ways_s = list(ways_s) if "records" in slow else []
    await asyncio.sleep(30)
    found = [(await bench.job(jobs[each])).outcome is not None for each in before_s]
    assert not (await process.fire("k")).jobs_pending
    return found


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("slow", ["", "store", "records", "store, records"])
async def test_the_time_of_a_fire_is_exact_where_one_way_was_fast(
    bench: Bench, process: Process, is_shared: bool, slow: str, again: bool
) -> None:
    """Whoever began to wait before it is decided, and nobody after it.

    Up to the error of an age in a record, for the sake of those that must not miss it; not for a
    job that waits again, perhaps because of this very fire.
    """
    late_s = -0.003 if is_shared and not again else -0.001
    found = await decided(
        bench, process, 0.5, 0.001, late_s, -0.5, again=again, slow=slow, ways_s=WAYS_S
    )
    assert found == [True, True, False, False]


async def test_a_record_says_when_it_fired_to_a_millisecond_or_two(
    bench: Bench, process: Process, is_shared: bool
) -> None:
    """Its age is rounded twice: whoever was stored before the fire must not miss it."""
    assert await decided(bench, process, -0.001, again=False) == [is_shared]


@pytest.mark.parametrize(("again", "since_s"), [(False, -0.499), (True, 0.501)])
async def test_a_time_that_is_uncertain_by_a_second(
    bench: Bench, process: Process, again: bool, since_s: float
) -> None:
    """All replies are slow in both ways: no job may miss it, and none that waits again be hit."""
    found = await decided(
        bench,
        process,
        since_s,
        since_s - 0.005,
        again=again,
        slow="store",
        ways_s=[(0.5, 0.5)] * SAMPLES,
    )
    assert found == [True, False]
