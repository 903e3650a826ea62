"""Periodic jobs through deploys and outages: processes of two versions start, end and die."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.jobs import Job
from purgatory.jobs.handlers.handler import run_time
from purgatory.jobs.model.job import JobFilter
from tests.nightly import by_night
from tests.promises.kit import START_MS, Bench, Process, now_ms
from tests.properties.test_scheduler_laws import in_virtual_time, new_bench

DISTANCES = (5, 7, 600)
# How long it takes until no lease of a process that died, no outage, and no run of a later version
# that has gone is left.
SETTLED_S = 200
CALM_S = 70

events = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "close", "crash", "cut", "mend", "lose"]),
        st.integers(0, 3),
        st.floats(0.001, 12),
    ),
    max_size=12,
)


async def stored(bench: Bench) -> list[Job]:
    page = await bench.database.query(JobFilter(), limit=1_000)
    assert page.next is None
    jobs: list[Job] = page.jobs
    return jobs


async def happen(bench: Bench, up: list[tuple[int, Process]], kind: str, number: int) -> None:
    if kind == "start":
        every_s = DISTANCES[number % len(DISTANCES)]
        process = await bench.process({}, periodic={"every": every_s, "max_attempts": 2})
        up.append((every_s, process))
    elif up:
        _, process = one = up[number % len(up)]
        if kind == "cut":
            process.link.cut()
        elif kind == "mend":
            process.link.mend()
        elif kind == "lose":
            process.link.on("Add", is_lost=bool(number % 2), error=ConnectionError, times=1)
        else:
            up.remove(one)
            await (process.crash() if kind == "crash" else process.close())


@settings(max_examples=by_night(60, 20))
@given(script=events, stays=st.integers(0, 2), last=st.integers(0, 2))
def test_each_time_has_one_job_and_one_version_stays(
    script: list[Any], stays: int, last: int
) -> None:
    """Whatever happens, no time has two; once it is calm, each time of that one has its run.

    Also if another one was started last, and has gone.
    """

    async def scenario() -> None:
        bench = new_bench()
        await bench.database.open()
        up: list[tuple[int, Process]] = []
        async with bench.stack:
            for kind, number, pause_s in [*script, ("start", stays, 1), ("start", last, 1)]:
                await happen(bench, up, kind, number)
                await asyncio.sleep(pause_s)
            stays_s, _ = up[-2]
            for _, process in up:
                process.link.mend()
            for every_s, process in up:
                if every_s != stays_s:
                    await process.close()
            # At no time of a run.
            await asyncio.sleep(SETTLED_S + 0.5 - now_ms() % 1_000 / 1_000)
            calm_ms = now_ms()
            await asyncio.sleep(CALM_S)
            runs = [run_time(job) for job in await stored(bench)]
        times = Counter(run.at_ms for run in runs if run is not None)
        assert max(times.values()) == 1 and len(runs) == len(times)
        distances = {at_ms for at_ms in times if at_ms > calm_ms}
        step = stays_s * 1_000
        first = calm_ms + step - calm_ms % step
        assert distances == set(range(first, now_ms() + step, step))
        ran = Counter(at_s for at_s, _ in bench.ticks)
        calm = {round((at_ms - START_MS) / 1_000, 2) for at_ms in distances if at_ms <= now_ms()}
        assert all(ran[at_s] == 1 for at_s in calm)

    in_virtual_time(scenario())
