"""Running every step but `Add`, and what the replies mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from purgatory.jobs.model.errors import (
    JobChangedError,
    JobConflictError,
    JobError,
    JobNotFoundError,
    StoreError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import (
    Add,
    Cancel,
    CancelForKey,
    Claim,
    Claimed,
    Fire,
    KeyFired,
    KeyStep,
    Prune,
    Reschedule,
    RunNow,
    Start,
    Step,
    VersionedStep,
)
from purgatory.jobs.redis.adder import JobAdder
from purgatory.jobs.redis.job_records import JobRecords
from purgatory.jobs.redis.reader import RedisReader
from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR
from purgatory.jobs.redis.shard import RedisShard, is_error, step_error
from purgatory.jobs.redis.shards import RedisShards, timed_id
from purgatory.jobs.redis.step_codec import claim_step, job_step, key_step, step_of
from purgatory.redis_server.script import netstrings


class StepRunner:
    """Runs the steps of one caller, kind by kind."""

    def __init__(
        self,
        shards: RedisShards,
        records: JobRecords,
        reader: RedisReader,
        adder: JobAdder,
        limits: JobLimits,
    ) -> None:
        self._shards = shards
        self._records = records
        self._reader = reader
        self._limits = limits
        self._runs: Mapping[
            type[Step[Any]], Callable[[Sequence[Any]], Coroutine[Any, Any, list[Any]]]
        ] = {
            Add: adder.add,
            Fire: self._decide,
            CancelForKey: self._decide,
            Claim: self._claim_all,
            Prune: self._prune_all,
        }

    # No coroutine of its own, as in WorkerStore: a frame less for each step of each job.
    def run(self, kind: type[Step[Any]], steps: Sequence[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Return the results of steps of one kind."""
        return self._runs.get(kind, self._apply)(steps)

    # Steps on one job

    async def _apply(self, steps: Sequence[Any]) -> list[Any]:
        replies = await self._shards.ask_each([job_step(step, self._limits) for step in steps])
        kind = type(steps[0])
        if kind is Start:
            return [await self._records.job(reply) for reply in replies]
        if kind not in _PARTICIPLES:
            return [bool(reply) for reply in replies]
        return [
            await self._changed(step, reply) for step, reply in zip(steps, replies, strict=True)
        ]

    async def _changed(self, step: Any, reply: bytes) -> Job | JobError:
        status, _, rest = reply.partition(b"\0")
        if status == b"missing":
            return JobNotFoundError(step.id)
        try:
            if status == b"deadline":
                step.deadline.resolve(int(rest), self._limits)
            job = await self._records.decode(rest)
        except StoreError:
            raise
        except JobError as exc:
            return exc
        if status == b"changed":
            return JobChangedError(job, step.if_version)
        if status == b"conflict":
            return JobConflictError(job, _PARTICIPLES[type(step)])
        return job

    # Steps on the jobs on a key

    async def _decide(self, steps: Sequence[KeyStep]) -> list[KeyFired]:
        fired = [KeyFired() for _ in steps]
        # One shard after another, as the limit is for all of them together.
        for shard in self._shards.all:
            limited = [
                key_step(
                    step, self._limits.cut(step.limit) - len(so_far.run) - len(so_far.cancelled)
                )
                for step, so_far in zip(steps, fired, strict=True)
            ]
            for place, reply in enumerate(await shard.run(limited)):
                fired[place] = _joined(fired[place], reply)
        return fired

    # Claiming

    async def _claim_all(self, steps: Sequence[Claim]) -> list[Claimed]:
        return [await self._claim(step) for step in steps]

    async def _claim(self, step: Claim) -> Claimed:
        limit = self._limits.cut(step.limit)
        if len(self._shards.all) == 1:
            return await self._claim_from(step, {self._shards.all[0]: limit})
        now_ms = await self._reader.now_ms()
        jobs: list[Job] = []
        # Others may have claimed what was seen: then what comes behind it is looked at.
        while shares := await self._shards.shares(step.within_ms, limit - len(jobs)):
            claimed = await self._claim_from(step, shares)
            jobs += claimed.jobs
        jobs.sort(key=_due)
        return Claimed(now_ms, jobs)

    async def _claim_from(self, step: Claim, shares: Mapping[RedisShard, int]) -> Claimed:
        """Claim as many jobs of each shard as `shares` says."""
        replies = await asyncio.gather(
            *(self._shards.ask(shard, claim_step(step, share)) for shard, share in shares.items())
        )
        clocks: list[int] = []
        jobs: list[Job] = []
        for reply in replies:
            now_ms, *found = netstrings(reply)
            clocks.append(int(now_ms))
            jobs += await self._records.jobs(found)
        return Claimed(min(clocks), jobs)

    # Retention

    async def _prune_all(self, steps: Sequence[Prune]) -> list[int]:
        return [await self._prune(step) for step in steps]

    async def _prune(self, step: Prune) -> int:
        limit = self._limits.cut(step.limit)
        total = 0
        finished: list[tuple[int, str]] = []
        for reply in await self._shards.ask_all(step_of("look_back", limit)):
            count, *lines = reply.split(b"\0")
            total += int(count)
            finished += map(timed_id, lines)
        finished.sort()
        gone = [
            step_of("forget", job_id)
            for place, (ms, job_id) in enumerate(finished[:limit])
            if ms < step.finished_before_ms or place < total - step.keep
        ]
        return sum(map(bool, await self._shards.ask_each(gone)))


_PARTICIPLES: Mapping[type[VersionedStep], str] = {
    Cancel: "cancelled",
    Reschedule: "rescheduled",
    RunNow: "run now",
}


def _joined(so_far: KeyFired, reply: bytes) -> KeyFired:
    if is_error(reply):
        raise step_error(reply)
    more, run, cancelled = reply.decode().split(SEPARATOR)
    return KeyFired(
        run=so_far.run + (tuple(run.split(KEY_SEPARATOR)) if run else ()),
        cancelled=so_far.cancelled + (tuple(cancelled.split(KEY_SEPARATOR)) if cancelled else ()),
        has_more=so_far.has_more or bool(more),
    )


def _due(job: Job) -> tuple[int, str]:
    return job.due_ms, job.id
