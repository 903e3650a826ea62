"""Which jobs a pending fire decides: those that waited when its key fired, by the store's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from purgatory.jobs.pending_fires import SAMPLES
from tests.unit.jobs.worker.deciding_process import Process, Records
from tests.unit.jobs.worker.slow_store import SlowStore, open_slow_store

# The last first: of five replies, the second came back at once, and the third request arrived at
# once.
ASK_S = [0.5, 0.5, 0.0, 0.5, 0.5]
REPLY_S = [0.5, 0.5, 0.5, 0.0, 0.5]


@pytest.fixture
async def store() -> AsyncIterator[SlowStore]:
    """An open store, whose clock has nothing to do with that of the process."""
    async with open_slow_store(1_800_000_000_123) as store:
        yield store


@pytest.fixture(params=["in memory", "recorded"])
async def process(
    request: pytest.FixtureRequest, store: SlowStore, records: Records
) -> AsyncIterator[Process]:
    """A process that keeps its fires in either place."""
    process = Process(store, records if request.param == "recorded" else None)
    yield process
    await process.fires.stop()


async def decided(process: Process, *before_s: float, again: bool = False) -> list[bool]:
    """Return which jobs a fire decides that began to wait so long before it, or after it.

    It is pending from a second after that, for a second.
    """
    time = asyncio.get_running_loop().time
    jobs: dict[float, str] = {}
    fired_s, fired_ns = time() + 1, 0
    for each in sorted({*before_s, 0.0}, reverse=True):
        await asyncio.sleep(fired_s - each - time())
        if each:
            jobs[each] = await (process.wait_again("k") if again else process.defer("k"))
        else:
            fired_ns = process.clock.now_ns()
    await asyncio.sleep(1)
    process.is_open = False
    assert await process.fires.add("k", "1", fired_ns=fired_ns, acked_ms=0)
    await asyncio.sleep(1)
    process.is_open = True
    await asyncio.sleep(20)
    assert not process.fires.must_wait("k")
    return [await process.fired(jobs[each]) is not None for each in before_s]


@pytest.mark.parametrize("slow", [(), ("store",), ("records",), ("store", "records")])
async def test_the_time_of_a_fire_is_exact_where_one_way_was_fast(
    process: Process, store: SlowStore, records: Records, slow: tuple[str, ...]
) -> None:
    """Whoever began to wait before it is decided, and nobody after it.

    Up to the error of an age in a record, for the sake of those that must not miss it; not for a
    job that waits again, perhaps because of this very fire.
    """
    has_records = "records" in slow and process.has_records
    for again in (False, True):
        store.ask_s[:], store.clock_s[:] = (ASK_S, REPLY_S) if "store" in slow else ([], [])
        records.ask_s, records.reply_s = (ASK_S[:], REPLY_S[:]) if has_records else ([], [])
        late_s = -0.003 if process.has_records and not again else -0.001
        assert await decided(process, 0.5, 0.001, late_s, -0.5, again=again) == [
            True,
            True,
            False,
            False,
        ]


async def test_a_record_says_when_it_fired_to_a_millisecond_or_two(process: Process) -> None:
    """Its age is rounded twice: whoever was stored before the fire must not miss it."""
    assert await decided(process, -0.001) == [process.has_records]


async def test_a_time_that_is_uncertain_by_a_second(process: Process, store: SlowStore) -> None:
    """All replies are slow in both ways: no job may miss it, and none that waits again be hit."""
    for again, since_s in ((False, -0.499), (True, 0.501)):
        store.ask_s[:] = store.clock_s[:] = [0.5] * SAMPLES
        found = await decided(process, since_s, since_s - 0.005, again=again)
        assert found == [True, False]
