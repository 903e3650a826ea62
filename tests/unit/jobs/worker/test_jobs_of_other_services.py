"""Services with different handlers on one database, which announces nothing to other processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import Again, JobContext, JobState, MemoryJobStore
from purgatory.jobs.model.steps import Claim, Step
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms

POLL_MS = 1_000


class Connection(MemoryJobStore):
    """The store of one process: its listeners hear only of its own changes."""

    def __init__(self, database: MemoryJobStore) -> None:
        super().__init__(now_ms=now_ms)
        self._index = database._index
        self.claimed = 0

    @property
    def hears_others(self) -> bool:
        return False

    async def run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        results = await super().run(steps)
        if isinstance(steps[0], Claim):
            self.claimed += sum(len(claimed.jobs) for claimed in results)
        return results


class Services:
    """Processes of two services, started one after the other."""

    def __init__(self, make_purgatory: Make, processes: AsyncExitStack) -> None:
        self._make, self._processes = make_purgatory, processes
        self._database = MemoryJobStore(now_ms=now_ms)
        self.shops: list[Purgatory] = []
        self.stores: list[Connection] = []
        self.shipped, self.billed = Log(), Log()

    async def start(self, handler: str, log: Callable[..., Any]) -> Purgatory:
        store = Connection(self._database)
        purgatory = self._make(jobs=store)
        purgatory.handler(handler)(log)
        purgatory.handled_elsewhere({"ship", "bill"} - {handler})
        await self._processes.enter_async_context(purgatory)
        await asyncio.sleep(0.31)
        self.stores.append(store)
        return purgatory

    async def start_shops(self) -> None:
        self.shops = [await self.start("ship", self.shipped) for _ in range(2)]

    @property
    def claimed_by_shops(self) -> int:
        return sum(store.claimed for store in self.stores[:2])


@pytest.fixture
async def services(make_purgatory: Make) -> AsyncIterator[Services]:
    """Two processes that ship; none that bills."""
    leap(1_800_000_000_000)
    async with AsyncExitStack() as processes:
        services = Services(make_purgatory, processes)
        await services.start_shops()
        yield services


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_job_that_another_service_fires_starts_within_a_poll(
    services: Services, is_busy: bool
) -> None:
    """However often the process that fired it claims its own; and the lateness says how late."""
    await services.start("bill", services.billed)
    shop = services.shops[0]
    for number in range(12):
        job = await shop.defer("bill", delay=3_600, keys=[f"paid:{number}"])
        await asyncio.sleep(3.17)
        fired_ms = now_ms()
        await shop.fire(f"paid:{number}")
        for _ in range(16):
            if is_busy:
                await shop.defer("ship", delay=0)
            await asyncio.sleep(0.1)
        assert len(services.billed) == number + 1
        late_ms = services.billed[-1].at_ms - fired_ms
        assert late_ms <= POLL_MS + 50
        lateness_ms = (await job.get()).lateness_ms
        assert lateness_ms is not None and abs(lateness_ms - late_ms) <= 2


async def test_services_do_not_claim_a_job_from_each_other_again_and_again(
    services: Services,
) -> None:
    """While no process that has its handler runs; it starts when one does."""
    shop = services.shops[0]
    job = await shop.defer("bill", delay=3_600, keys=["paid"])
    await shop.fire("paid")
    await asyncio.sleep(45)
    assert services.claimed_by_shops == 0
    await services.start("bill", services.billed)
    await job.wait(2)
    assert len(services.billed) == 1


async def test_later_rounds_of_a_job_start_as_soon_as_the_first(services: Services) -> None:
    """Each is fired by a process without the handler, on which they leave no mark."""
    starts: list[tuple[int, int]] = []

    async def bill(job: JobContext) -> Again | None:
        starts.append((job.round, now_ms()))
        return job.again(delay=3_600, keys=["paid"]) if job.round < 30 else None

    await services.start("bill", bill)
    shop = services.shops[0]
    job = await shop.defer("bill", delay=3_600, keys=["paid"])
    for number in range(31):
        await asyncio.sleep(3.17)
        fired_ms = now_ms()
        await shop.fire("paid")
        await asyncio.sleep(1.5)
        [*_, (round_, at_ms)] = starts
        assert round_ == number and at_ms - fired_ms <= POLL_MS + 50
    assert (await job.get()).state is JobState.DONE
    assert services.claimed_by_shops == 0
