"""Adding jobs: each in the shard where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from purgatory.job_errors import (
    DuplicateJobError,
    IdempotencyConflictError,
    JobError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added, AddStatus
from purgatory.jobs.model.transitions import added
from purgatory.jobs.redis.change_listeners import ChangeListeners
from purgatory.jobs.redis.job_records import JobRecords
from purgatory.jobs.redis.reader import RedisReader
from purgatory.jobs.redis.record import SEPARATOR
from purgatory.jobs.redis.shard import RedisShard, is_error, step_error
from purgatory.jobs.redis.shards import RedisShards
from purgatory.jobs.redis.step_codec import add_step, step_of, with_room


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
        results |= await self._conflicts(specs)
        for place, spec in enumerate(specs):
            if place in results:
                continue
            try:
                parts.setdefault(self._shards.home(spec), []).append((place, add_step(spec)))
            except JobError as exc:
                results[place] = exc
        adding = [self._add(shard, part, specs, results) for shard, part in parts.items()]
        # One needs no task of its own.
        await (adding[0] if len(adding) == 1 else asyncio.gather(*adding))
        return [results[place] for place in range(len(specs))]

    async def _conflicts(self, specs: Sequence[JobSpec]) -> dict[int, JobError]:
        """Return the errors of requests that came before as others, in another shard, by place.

        The dedupe key of those leads there. Two such requests that come at the same time are still
        stored both: to prevent it would take a lock in a third place, for what is a client's
        mistake. Repeats belong to one shard, where looking and storing are one step.
        """
        asked = {place: spec.request for place, spec in enumerate(specs) if spec.request}
        if len(self._shards.all) == 1 or not asked:
            return {}
        replies = await self._shards.ask_each(
            [step_of("requested", request.name) for request in asked.values()]
        )
        # {place: id of the job}
        others: dict[int, str] = {}
        for (place, request), reply in zip(asked.items(), replies, strict=True):
            job_id, _, fingerprint = reply.decode().partition(SEPARATOR)
            if reply and fingerprint != request.fingerprint:
                others[place] = job_id
        jobs = await self._reader.get(list(others.values())) if others else []
        return {
            place: IdempotencyConflictError(job)
            for place, job in zip(others, jobs, strict=True)
            if job is not None
        }

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
        is_repeat = status == b"repeated"
        if is_repeat:
            status, _, rest = rest.partition(b"\0")
        elif status == b"added":
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
        if status == b"reused":
            raise IdempotencyConflictError(job)
        return Added(job, AddStatus(status.decode()), is_repeat)
