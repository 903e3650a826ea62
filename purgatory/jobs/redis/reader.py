"""Queries of all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from purgatory.jobs.model.job import (
    BlockedBy,
    HandlerState,
    Job,
    JobCounts,
    JobFilter,
    JobPage,
    JobState,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Paused
from purgatory.jobs.redis.record import (
    ALL_HANDLERS,
    KEY_SEPARATOR,
    SEPARATOR,
    names_field,
    step_of,
)
from purgatory.jobs.redis.shards import RedisShard, RedisShards
from purgatory.redis_server.script import netstrings

# A corrupt record may have anything there.
_BLOCKED_BY = {str(each): each for each in BlockedBy}
# Jobs that are counted by handler: each of them costs the server some microseconds.
MAX_COUNTED: Final = 100_000


class RedisReader:
    """The queries of a RedisJobStore: each merges what the shards found."""

    def __init__(self, shards: RedisShards, limits: JobLimits) -> None:
        self._shards = shards
        self.limits: JobLimits = limits

    async def now_ms(self) -> int:
        """Return the server's clock."""
        return min(int(result) for result in await self._shards.ask_all(step_of("now_ms")))

    async def next_due_ms(self, handlers: Sequence[str] | None = None) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        found = await self._shards.ask_all(step_of("next_due_ms", names_field(handlers)))
        return min((int(due_ms) for due_ms in found if due_ms), default=None)

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for an id without a job."""
        found = await self._shards.ask_each([step_of("get", job_id) for job_id in job_ids])
        return [await self._shards.job(record) for record in found]

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at a batch at most."""
        limit = self.limits.cut(limit)
        filters = (where.state, where.handler, where.key, where.concurrency_key)
        step = step_of("query", after, limit, *filters, "1" if where.is_blocked else None)
        jobs: list[Job] = []
        ends = []
        for reply in await self._shards.ask_all(step):
            end, *found = netstrings(reply)
            ends.append(end.decode())
            jobs += await self._shards.jobs(found)
        # A shard has looked no further down than this: what others have below is of later pages.
        end_id = max(ends)
        jobs = sorted((job for job in jobs if job.id >= end_id), key=attrgetter("id"), reverse=True)
        if len(jobs) > limit:
            return JobPage(jobs[:limit], next=jobs[limit - 1].id)
        return JobPage(jobs, next=end_id or None)

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state, and are blocked."""
        replies = await self._shards.ask_all(step_of("counts"))
        rows = [[int(count) for count in reply.split(b"\0")] for reply in replies]
        names = ("quarantined", "waiting", "running", "done", "failed", "cancelled", "blocked")
        return JobCounts(**dict(zip(names, map(sum, zip(*rows, strict=True)), strict=True)))

    async def handler_counts(self) -> Mapping[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if that are very many. Reads the record of each, a batch at a time: a job that changes
        meanwhile may be counted in both states or in none.
        """
        counts = await self.counts()
        if counts.waiting + counts.running > MAX_COUNTED:
            return None
        found: Counter[HandlerState] = Counter()
        for shard in self._shards.all:
            for state in (JobState.RUNNING, JobState.WAITING):
                found += await self._handlers_in(shard, state)
        return found

    async def _handlers_in(self, shard: RedisShard, state: JobState) -> Counter[HandlerState]:
        found: Counter[HandlerState] = Counter()
        last = ""
        while True:
            reply = await self._shards.ask(shard, step_of("count_handlers", state, last))
            # Of a damaged id, this is lower than the id: with U+FFFD the batch would come again.
            last, *lines = reply.decode("utf-8", "backslashreplace").split(SEPARATOR)
            for line in filter(None, lines):
                handler, by, count = line.rsplit(KEY_SEPARATOR, 2)
                found[HandlerState(handler, state, _BLOCKED_BY.get(by))] += int(count)
            if not last:
                return found

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many of their jobs are due."""
        names: set[str] = set()
        jobs = 0
        for reply in await self._shards.ask_all(step_of("paused")):
            texts, _, count = reply.decode().partition(SEPARATOR)
            names.update(filter(None, texts.split(KEY_SEPARATOR)))
            jobs += int(count)
        return Paused(tuple(sorted(names - {ALL_HANDLERS})), ALL_HANDLERS in names, jobs)
