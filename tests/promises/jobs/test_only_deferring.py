"""Processes that only defer: those that run the jobs have the same handlers."""

from __future__ import annotations

import asyncio

from tests.promises.kit import Bench


async def test_a_process_may_leave_its_handlers_to_others(bench: Bench) -> None:
    """It checks and defers, also periodic jobs, and runs none; it is ready all the same."""
    web = await bench.process(
        runs_handlers=False, periodic={"every": 5}, bounds={"max_attempts": 3}
    )
    job = await web.defer("note", delay=1)
    await asyncio.sleep(6)
    assert not bench.log and not bench.ticks and web.missing == [] and web.is_counting(held=0)
    await bench.process(periodic={"every": 5})
    assert (await job.wait(5)).max_attempts == 3
    await asyncio.sleep(5)
    assert len(bench.log) == 1 and bench.ticks.times == [5, 10]
    await web.close()
