"""Adding jobs: each in the shard where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from purgatory.jobs.model.errors import (
    DuplicateJobError,
    JobError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added, AddStatus
from purgatory.jobs.model.transitions import added
from purgatory.jobs.redis.change_listeners import ChangeListeners
from purgatory.jobs.redis.job_records import JobRecords
from purgatory.jobs.redis.reader import RedisReader
from purgatory.jobs.redis.shard import RedisShard, is_error, step_error
from purgatory.jobs.redis.shards import RedisShards
from purgatory.jobs.redis.step_codec import add_step, with_room


class JobAdder:
    """Runs `Add` steps."""

    def __init__(
        self,
        shards: RedisShards,
        records: JobRecords,
        reader: RedisReader,
        listeners: ChangeListeners,
        limits: JobLimits,
    ) -> None:
        self._shards = shards
        self._records = records
        self._reader = reader
        self._listeners = listeners
        self._limits = limits

    async def add(self, steps: Sequence[Add]) -> list[Added | JobError]:
        """Return for each step what was done, or why it was refused."""
        specs = [step.spec for step in steps]
        results: dict[int, Added | JobError] = {}
        # {shard: [(place, step)]}
        parts: dict[RedisShard, list[tuple[int, bytes]]] = {}
        elsewhere = await self._repeated(specs)
        for place, spec in enumerate(specs):
            if place in elsewhere:
                results[place] = Added(elsewhere[place], AddStatus.KEPT)
                continue
            try:
                parts.setdefault(self._shards.home(spec), []).append((place, add_step(spec)))
            except JobError as exc:
                results[place] = exc
        adding = [self._add(shard, part, specs, results) for shard, part in parts.items()]
        # One needs no task of its own.
        await (adding[0] if len(adding) == 1 else asyncio.gather(*adding))
        return [results[place] for place in range(len(specs))]

    async def _repeated(self, specs: Sequence[JobSpec]) -> dict[int, Job]:
        """Return the jobs of requests that came before, perhaps with another dedupe key, by place.

        Another dedupe key leads to another shard, where a second job would have the same id. Two
        such requests that come at the same time are still stored twice: to prevent it would take a
        lock in a third place, for what is a client's mistake. Repeats with the same dedupe key
        belong to one shard, where looking and storing are one step.
        """
        if len(self._shards.all) == 1:
            return {}
        asked = [
            (place, job_id)
            for place, spec in enumerate(specs)
            if spec.other_ids
            for job_id in spec.ids
        ]
        found = await self._reader.get([job_id for _, job_id in asked]) if asked else []
        return {place: job for (place, _), job in zip(asked, found, strict=True) if job is not None}

    async def _add(
        self,
        shard: RedisShard,
        part: list[tuple[int, bytes]],
        specs: Sequence[JobSpec],
        results: dict[int, Added | JobError],
    ) -> None:
        replies = await shard.run([step for _, step in part])
        if len(self._shards.all) > 1 and b"full" in replies:
            await self._add_to_full(shard, part, replies)
        for (place, _), reply in zip(part, replies, strict=True):
            try:
                results[place] = await self._added(specs[place], reply)
            except (StoreNotReadyError, StoreReadOnlyError, StoreUnavailableError):
                # Not for this job only.
                raise
            except JobError as exc:
                results[place] = exc

    async def _add_to_full(
        self, shard: RedisShard, part: list[tuple[int, bytes]], replies: list[bytes]
    ) -> None:
        """Add again what this shard's share has no room for, if the shares of others have."""
        counts = await self._reader.counts()
        room = self._limits.max_waiting - counts.waiting - counts.running
        full = [place for place, reply in enumerate(replies) if reply == b"full"][: max(0, room)]
        again = await shard.run([with_room(part[place][1]) for place in full])
        for place, reply in zip(full, again, strict=True):
            replies[place] = reply

    async def _added(self, spec: JobSpec, reply: bytes) -> Added:
        status, _, rest = reply.partition(b"\0")
        if status == b"added":
            # What the script stored is what this makes of the same clock.
            job = added(spec, int(rest), self._limits)
            self._listeners.notify(job.id, None)
            return Added(job, AddStatus.ADDED)
        if status == b"full":
            raise StoreFullError.of_limit(self._limits.max_waiting)
        if status == b"deadline":
            spec.deadline.resolve(int(rest), self._limits)
        if is_error(reply):
            raise step_error(reply)
        job = await self._records.decode(rest)
        if status == b"duplicate":
            raise DuplicateJobError(job)
        return Added(job, AddStatus(status.decode()))
