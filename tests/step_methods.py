"""Stores with a method for each step, on top of `JobStore.run`, as tests call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from purgatory.job_errors import JobError
from purgatory.jobs import MemoryJobStore
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job, JobClaim
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import (
    Add,
    Added,
    Cancel,
    CancelForKey,
    Claim,
    Claimed,
    Finish,
    Fire,
    GiveBack,
    KeyFired,
    Miss,
    Prune,
    Renew,
    Reschedule,
    Result,
    RunNow,
    Start,
    Step,
    accepted,
)
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore

HANDLERS: Final = (
    "note",
    "other",
    "own",
    "third",
    "a",
    "b",
    "c",
    "h",
    "x",
    "work",
    "resize",
    "slow",
    "key",
)


class StepMethods(Protocol):
    """Each is documented with its step; one on a single job raises the error that is its result."""

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps, as `JobStore.run` does."""
        ...

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Run `Add` for each spec."""
        return await self.run([Add(spec) for spec in specs])

    async def fire(self, fires: Sequence[Fire], *, limit: int) -> list[KeyFired]:
        """Run `Fire` steps, each with this limit."""
        return await self.run([replace(fire, limit=limit) for fire in fires])

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Run `Cancel`."""
        return await self._run_one(Cancel(job_id, if_version=if_version))

    async def cancel_for_key(self, key: str, *, limit: int) -> KeyFired:
        """Run `CancelForKey`."""
        return await self._run_one(CancelForKey(key, limit=limit))

    async def reschedule(
        self, job_id: str, deadline: Deadline, *, if_version: int | None = None
    ) -> Job:
        """Run `Reschedule`."""
        return await self._run_one(Reschedule(job_id, deadline, if_version=if_version))

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Run `RunNow`."""
        return await self._run_one(RunNow(job_id, if_version=if_version))

    async def claim(self, worker: str, *, within_ms: int, limit: int, lease_ms: int) -> Claimed:
        """Run `Claim` for all handlers of tests."""
        return await self._run_one(Claim(worker, within_ms, limit, lease_ms, HANDLERS))

    async def start(
        self, claims: Sequence[JobClaim], *, lease_ms: int, attempt: int | None = None
    ) -> list[Job | None]:
        """Run `Start` for each claim."""
        return await self.run([Start(claim, lease_ms, attempt) for claim in claims])

    async def renew(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[JobClaim]:
        """Run `Renew` for each claim; return the claims that are lost, or finished."""
        renewed = await self.run([Renew(claim, lease_ms) for claim in claims])
        return [claim for claim, result in zip(claims, renewed, strict=True) if result is False]

    async def finish(self, results: Sequence[Finish]) -> list[bool]:
        """Run `Finish` steps."""
        return await self.run(results)

    async def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Run `Miss` for each claim."""
        return await self.run([Miss(claim) for claim in claims])

    async def give_back(self, returns: Sequence[GiveBack]) -> list[bool]:
        """Run `GiveBack` steps."""
        return await self.run(returns)

    async def prune(self, *, finished_before_ms: int, keep: int, limit: int) -> int:
        """Run `Prune`."""
        return await self._run_one(Prune(finished_before_ms, keep, limit))

    async def _run_one(self, step: Step[Result | JobError]) -> Result:
        (result,) = await self.run([step])
        return accepted(result)


class MemorySteps(MemoryJobStore, StepMethods):
    """Jobs in memory."""


class RedisSteps(RedisJobStore, StepMethods):
    """Jobs in Redis."""


class SqlSteps(SqlJobStore, StepMethods):
    """Jobs in a database."""
