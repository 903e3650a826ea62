"""Two processes that work on one set of jobs, and the time of their store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from purgatory.jobs import Job, JobError, JobLimits
from purgatory.jobs.model.job import JobClaim
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Fire
from tests.contract.job_stores import ContractStore, JobStores, MakeJobStores

START_MS = 1_800_000_000_000
LEASE_MS = 30_000
# The id of no job.
NOBODY = "0" * 32


class World:
    """`here` and `there` are store objects of two processes; `now_ms` is the store's clock."""

    here: ContractStore
    there: ContractStore

    def __init__(self, make_job_stores: MakeJobStores, limits: JobLimits | None = None) -> None:
        self.limits = JobLimits() if limits is None else limits
        self.now_ms = START_MS
        self.stores: JobStores = make_job_stores(self.limits, lambda: self.now_ms)

    async def open(self) -> World:
        self.here = await self.stores.connect()
        self.there = await self.stores.connect()
        return self

    async def close(self) -> None:
        await self.stores.close()

    async def restart_here(self) -> None:
        """The process of `here` ends, and another takes its place."""
        await self.stores.disconnect(self.here)
        self.here = await self.stores.connect()

    def spec(
        self, handler: str = "note", payload: Any = None, owner: str | None = None, **options: Any
    ) -> JobSpec:
        """A job due in a second, unless `delay` or `at` says otherwise."""
        if "at" not in options:
            options.setdefault("delay", 1)
        spec = JobSpec.of(handler, payload, wall_ms=self.now_ms, limits=self.limits, **options)
        return replace(spec, owner=owner)

    async def add(self, handler: str = "note", payload: Any = None, **options: Any) -> Job:
        """Add one job that is not refused."""
        return (await self.add_spec(self.spec(handler, payload, **options))).job

    async def add_spec(self, spec: JobSpec) -> Added:
        added = await self.try_add(spec)
        assert not isinstance(added, JobError), added
        return added

    async def try_add(self, spec: JobSpec) -> Added | JobError:
        (added,) = await self.here.add([spec])
        return added

    async def job(self, job_id: str) -> Job:
        """The job as both processes see it."""
        (job,) = await self.here.get([job_id])
        assert job is not None
        assert await self.there.get([job_id]) == [job]
        return job

    async def claim(
        self,
        store: ContractStore | None = None,
        *,
        within_ms: int = 60_000,
        limit: int = 100,
        worker: str = "w1",
    ) -> list[Job]:
        store = self.here if store is None else store
        claimed = await store.claim(worker, within_ms=within_ms, limit=limit, lease_ms=LEASE_MS)
        assert claimed.now_ms == self.now_ms
        return claimed.jobs

    async def claim_one(self, store: ContractStore | None = None) -> JobClaim:
        (job,) = await self.claim(store)
        return job.claim

    async def try_start(self, claim: JobClaim) -> Job | None:
        (job,) = await self.here.start([claim], lease_ms=LEASE_MS)
        return job

    async def start(self, claim: JobClaim) -> Job:
        job = await self.try_start(claim)
        assert job is not None
        return job

    async def run(self, **options: Any) -> Job:
        """Add a job due at once, claim it and start it."""
        await self.add(delay=0, **options)
        return await self.start(await self.claim_one())

    async def fire(self, key: str, value_json: str = "null", limit: int = 100) -> Any:
        (fired,) = await self.there.fire([Fire(key, value_json)], limit=limit)
        return fired
