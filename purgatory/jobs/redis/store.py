"""A job store in Redis or Valkey."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from purgatory.job_errors import (
    DuplicateJobError,
    IdempotencyConflictError,
    JobError,
    JobNotFoundError,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import (
    BlockedBy,
    HandlerState,
    Job,
    JobCounts,
    JobFilter,
    JobPage,
    JobState,
)
from purgatory.jobs.model.limits import Bounds, JobLimits
from purgatory.jobs.model.spec import MAX_REQUESTS, JobSpec
from purgatory.jobs.model.steps import (
    Add,
    Added,
    AddStatus,
    CancelForKey,
    Claim,
    Claimed,
    Fire,
    FireJob,
    KeyFired,
    KeyStep,
    Pause,
    Paused,
    Prune,
    Result,
    Resume,
    Start,
    Step,
    VersionedStep,
    WaitAgain,
)
from purgatory.jobs.model.transitions import added, changed_by
from purgatory.jobs.redis.changes import ChangeListeners, ChangeSubscription
from purgatory.jobs.redis.record import (
    ALL_HANDLERS,
    KEY_SEPARATOR,
    SEPARATOR,
    add_step,
    claim_step,
    job_step,
    key_step,
    names_field,
    step_of,
)
from purgatory.jobs.redis.shards import (
    RedisShard,
    RedisShards,
    is_error,
    no_reply_error,
    step_error,
    timed_ids,
)
from purgatory.jobs.stores.protocol import CloseOnce, StoreListener
from purgatory.redis_server.script import CONNECTION_ERRORS, Client, netstrings
from purgatory.redis_server.server import RedisServer, ServerSettings
from purgatory.timer.clock import Seconds

# A corrupt record may have anything there.
_BLOCKED_BY = {str(each): each for each in BlockedBy}
# Jobs that are counted by handler: each of them costs the server some microseconds.
MAX_COUNTED: Final = 100_000

_RunAll = Callable[[Sequence[Any]], Coroutine[Any, Any, list[Any]]]


def _one_by_one(run: Callable[[Any], Awaitable[Any]]) -> _RunAll:
    async def run_all(steps: Sequence[Any]) -> list[Any]:
        return [await run(step) for step in steps]

    return run_all


class RedisJobStore:
    """A `JobStore` in Redis 6.2 or Valkey.

    Every change is a step of one Lua script; the steps that are submitted while a round trip is
    under way share the next. Each shard has a hash tag of its own, so that any number
    of shards works in a cluster; with more than one, what names a job by its id alone asks all of
    them at once.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        prefix: str = "purgatory",
        shards: int = 1,
        *,
        limits: JobLimits | None = None,
        now_ms: Callable[[], int] | None = None,
        fsync: bool = False,
        timeout: Seconds = 10.0,
    ) -> None:
        """Keep jobs under `prefix`, on the server's clock unless `now_ms` is another.

        The URL may begin with `redis+cluster://`, of a node of a cluster, or be one of Sentinels:
        `redis+sentinel://user:password@host:26379,host:26379/service`. A client that is given is
        left open, and may be a RedisCluster. `shards` must be the same
        for all who share the jobs, for ever (`open` checks it); each takes its share of
        max_waiting. With `fsync`, nothing is acknowledged before it is on the server's disk
        (WAITAOF: Redis 7.2, Valkey). A round trip that takes longer than `timeout` seconds raises
        StoreUnavailableError. Raises ValueError for arguments that cannot work.
        """
        if isinstance(shards, bool) or not 1 <= shards <= 1_024:
            raise ValueError(f"shards is {shards!r}: give a number from 1 to 1024")
        self._now_ms = now_ms
        self._server = RedisServer(
            url_or_client, "jobs", prefix, timeout, fsync="fsync=True", is_fsynced=fsync
        )
        self._timeout = self._server.timeout
        self._listeners = listeners = ChangeListeners()
        self._shards = RedisShards(
            RedisShard(
                f"{{{prefix}:jobs:{number}}}:",
                settings=self._script_settings,
                server=self._server,
                on_reply=listeners.on_reply,
            )
            for number in range(shards)
        )
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._runs: Mapping[type[Step[Any]], _RunAll] = {
            Add: self._add_all,
            Fire: self._decide,
            CancelForKey: self._decide,
            Claim: _one_by_one(self._claim),
            Pause: _one_by_one(self._pause),
            Resume: _one_by_one(self._resume),
            Prune: _one_by_one(self._prune),
        }
        self._subscription: ChangeSubscription | None = None
        self._closing = CloseOnce(self._close)

    async def open(self) -> None:
        """Connect; raise StoreNotReadyError for a server that loses jobs or cannot store them."""
        self._server.open()
        self._shards.open()
        try:
            settings = await self._settings()
            if settings.faults:
                raise StoreNotReadyError(". ".join(settings.faults))
            await self._begin_shards()
        except BaseException:
            # It may be cancelled because the process ends.
            self._timeout.hurry()
            await self._close()
            raise
        self._closing = CloseOnce(self._close)
        self._subscription = ChangeSubscription(
            self._server,
            [shard.tag for shard in self._shards.all],
            on_message=self._listeners.on_message,
            on_subscribed=self._notify_of_due,
        )
        await self._subscription.start(self._timeout.seconds)

    def hurry(self) -> None:
        """Leave half a second to round trips under way, as the process ends."""
        self._timeout.hurry()

    async def close(self) -> None:
        """Wait for the steps under way, then release every connection."""
        await self._closing.wait()

    async def _close(self) -> None:
        try:
            if self._subscription is not None:
                await self._subscription.stop()
                self._subscription = None
        finally:
            try:
                await self._shards.close()
            finally:
                await self._server.close()

    async def check(self) -> list[str]:
        """Return faults of the server's settings, a sentence each."""
        self._shards.require_open()
        settings = await self._settings()
        return settings.faults + settings.warnings

    @property
    def hears_others(self) -> bool:
        """True while the subscription holds."""
        return self._subscription is not None and self._subscription.is_subscribed

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of changes; return the function that ends it."""
        return self._listeners.subscribe(listener)

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps in order; return a result for each."""
        self._shards.require_open()
        # Most calls: each coroutine and each list counts.
        if len(steps) == 1:
            return await self._run(type(steps[0]), steps)
        results: list[Result] = []
        for kind, several in groupby(steps, type):
            results += await self._run(kind, list(several))
        return results

    def may_wait_on(self, key: str) -> bool:
        """Return True: another process may have put a job on any key since we looked."""
        return True

    # Queries: each merges what the shards found

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

    def _script_settings(self, channel: str) -> bytes:
        limits = self.limits
        return step_of(
            channel,
            self._listeners.name,
            limits.horizon_ms,
            limits.max_waiting // len(self._shards.all),
            limits.past_tolerance_ms,
            limits.max_delay_ms,
            limits.max_batch,
            MAX_REQUESTS,
            max(1, limits.max_quarantined // len(self._shards.all)),
            limits.max_quarantined_length,
            None if self._now_ms is None else self._now_ms(),
        )

    async def _notify_of_due(self) -> None:
        due_ms = await self.next_due_ms()
        now_ms = await self.now_ms()
        if due_ms is not None and due_ms <= now_ms + self.limits.horizon_ms:
            self._listeners.notify(None, due_ms)

    async def _settings(self) -> ServerSettings:
        try:
            return await self._server.settings([shard.tag for shard in self._shards.all])
        except CONNECTION_ERRORS as exc:
            raise no_reply_error(exc, is_read=True) from exc

    async def _begin_shards(self) -> None:
        count = len(self._shards.all)
        for shards in await self._shards.ask_all(step_of("begin", count)):
            if int(shards) != count:
                # Some of its jobs would be nowhere, and never run.
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in {int(shards)} shards, and this store was "
                    f"given shards={count}: give shards={int(shards)}, or use another prefix"
                )

    # Steps, kind by kind

    # No coroutine of its own, as in WorkerStore: a frame less for each step of each job.
    def _run(self, kind: type[Step[Any]], steps: Sequence[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Return the results of steps of one kind."""
        return self._runs.get(kind, self._apply)(steps)

    # Adding

    async def _add_all(self, steps: Sequence[Add]) -> list[Added | JobError]:
        """Return for each step what was done, or why it was refused."""
        specs = [step.spec for step in steps]
        results: dict[int, Added | JobError] = {**await self._conflicts(specs)}
        # {shard: [(index, step)]}
        parts: dict[RedisShard, list[tuple[int, bytes]]] = {}
        for index, spec in enumerate(specs):
            if index in results:
                continue
            try:
                parts.setdefault(self._shards.home(spec), []).append((index, add_step(spec)))
            except JobError as exc:
                results[index] = exc
        adding = [self._add(shard, part, specs, results) for shard, part in parts.items()]
        # One needs no task of its own.
        await (adding[0] if len(adding) == 1 else asyncio.gather(*adding))
        return [results[index] for index in range(len(specs))]

    async def _conflicts(self, specs: Sequence[JobSpec]) -> dict[int, JobError]:
        """Return the errors of requests that came before as others, in another shard, by index.

        The dedupe key of those leads there. Two such requests that come at the same time are still
        stored both: to prevent it would take a lock in a third place, for what is a client's
        mistake. Repeats belong to one shard, where looking and storing are one step.
        """
        asked = {index: spec.request for index, spec in enumerate(specs) if spec.request}
        if len(self._shards.all) == 1 or not asked:
            return {}
        replies = await self._shards.ask_each(
            [step_of("requested", request.name) for request in asked.values()]
        )
        # {index: id of the job}
        others: dict[int, str] = {}
        for (index, request), reply in zip(asked.items(), replies, strict=True):
            job_id, _, fingerprint = reply.decode().partition(SEPARATOR)
            if reply and fingerprint != request.fingerprint:
                others[index] = job_id
        jobs = await self.get(list(others.values())) if others else []
        return {
            index: IdempotencyConflictError(job)
            for index, job in zip(others, jobs, strict=True)
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
        for (index, _), reply in zip(part, replies, strict=True):
            try:
                results[index] = await self._added(specs[index], reply)
            except (StoreNotReadyError, StoreReadOnlyError, StoreUnavailableError):
                # Not for this job only.
                raise
            except JobError as exc:
                results[index] = exc

    async def _add_to_full(
        self, shard: RedisShard, part: list[tuple[int, bytes]], replies: list[bytes]
    ) -> None:
        """Add again what this shard's share has no room for, if the shares of others have."""
        counts = await self.counts()
        room = self.limits.max_waiting - counts.waiting - counts.running
        full = [index for index, reply in enumerate(replies) if reply == b"full"][: max(0, room)]
        # The last field of these says so.
        again = await shard.run([part[index][1] + b"1" for index in full])
        for index, reply in zip(full, again, strict=True):
            replies[index] = reply

    async def _added(self, spec: JobSpec, reply: bytes) -> Added:
        status, _, rest = reply.partition(b"\0")
        is_repeat = status == b"repeated"
        if is_repeat:
            status, _, rest = rest.partition(b"\0")
        elif status == b"added":
            # What the script stored is what this makes of the same clock.
            job = added(spec, int(rest), self.limits)
            self._listeners.notify(job.id, None)
            return Added(job, AddStatus.ADDED)
        if status == b"full":
            raise StoreFullError.of_limit(self.limits.max_waiting)
        if status == b"deadline":
            spec.deadline.resolve(int(rest), self.limits)
        if is_error(reply):
            raise step_error(reply)
        job = await self._shards.decode(rest)
        if status == b"duplicate":
            raise DuplicateJobError(job)
        if status == b"reused":
            raise IdempotencyConflictError(job)
        return Added(job, AddStatus(status.decode()), is_repeat)

    # Steps on one job

    async def _apply(self, steps: Sequence[Any]) -> list[Any]:
        kind = type(steps[0])
        if kind is Start and len(self._shards.all) > 1:
            steps = [replace(step, bounds=self._share(step.bounds)) for step in steps]
        replies = await self._shards.ask_each([job_step(step, self.limits) for step in steps])
        if kind in (Start, FireJob, WaitAgain):
            return [await self._shards.job(reply) for reply in replies]
        if issubclass(kind, VersionedStep):
            pairs = zip(steps, replies, strict=True)
            return [await self._changed(step, reply) for step, reply in pairs]
        return [bool(reply) for reply in replies]

    async def _changed(self, step: VersionedStep, reply: bytes) -> Job | JobError:
        refused_ms, _, found = reply.partition(b"\0")
        if not found:
            return JobNotFoundError(step.id)
        try:
            job = await self._shards.decode(found)
            if refused_ms:
                changed_by(step, job, int(refused_ms), self.limits)
        except StoreError:
            raise
        except JobError as exc:
            return exc
        return job

    # Steps on the jobs on a key

    async def _decide(self, steps: Sequence[KeyStep]) -> list[KeyFired]:
        fired = [KeyFired() for _ in steps]
        # One shard after another, as the limit is for all of them together.
        for shard in self._shards.all:
            limited = [
                key_step(step, self.limits.cut(step.limit) - so_far.count)
                for step, so_far in zip(steps, fired, strict=True)
            ]
            for index, reply in enumerate(await shard.run(limited)):
                fired[index] = _joined(fired[index], reply)
        return fired

    # Claiming

    async def _claim(self, step: Claim) -> Claimed:
        limit = self.limits.cut(step.limit)
        if len(self._shards.all) == 1:
            return await self._claim_from(step, {self._shards.all[0]: limit})
        step = replace(step, bounds=tuple(filter(None, map(self._share, step.bounds))))
        now_ms = await self.now_ms()
        jobs: list[Job] = []
        if step.bounds or step.clock_ms is not None:
            # Where nothing but blocked jobs is due, too, there may be slots for these; and where
            # nothing is due, leases that have ended.
            await self._claim_from(step, dict.fromkeys(self._shards.all, 0))
            step = replace(step, clock_ms=None)
        # Others may have claimed what was seen: then what comes behind it is looked at.
        while shares := await self._shards.shares(step.within_ms, limit - len(jobs), step.handlers):
            claimed = await self._claim_from(step, shares)
            jobs += claimed.jobs
        jobs.sort(key=attrgetter("due_ms", "id"))
        return Claimed(now_ms, jobs)

    async def _claim_from(self, step: Claim, shares: Mapping[RedisShard, int]) -> Claimed:
        """Claim as many jobs of each shard as `shares` says."""
        replies = await asyncio.gather(
            *(self._shards.ask(shard, claim_step(step, share)) for shard, share in shares.items())
        )
        clocks: list[int] = []
        jobs: list[Job] = []
        is_cut = False
        for reply in replies:
            now_ms, cut, *found = netstrings(reply)
            clocks.append(int(now_ms))
            jobs += await self._shards.jobs(found)
            is_cut = is_cut or bool(cut)
        return Claimed(min(clocks), jobs, is_cut)

    def _share(self, bounds: Bounds | None) -> Bounds | None:
        """Return the bounds of one shard, which counts its own jobs: at least one slot."""
        if bounds is None or bounds.max_running is None:
            return bounds
        return bounds._replace(max_running=max(1, bounds.max_running // len(self._shards.all)))

    # Pauses: in every shard, each of which looks at its own

    async def _pause(self, step: Pause) -> None:
        await self._shards.ask_all(step_of("pause", step.handler))

    async def _resume(self, step: Resume) -> int:
        asked = step_of("resume", step.handler, self.limits.cut(step.limit))
        return sum(map(int, await self._shards.ask_all(asked)))

    # Retention

    async def _prune(self, step: Prune) -> int:
        limit = self.limits.cut(step.limit)
        total = 0
        finished: list[tuple[int, str]] = []
        for reply in await self._shards.ask_all(step_of("first_finished", limit)):
            count, _, first = reply.partition(b"\1")
            total += int(count)
            finished += timed_ids(first)
        finished.sort()
        gone = [
            step_of("forget", job_id)
            for index, (ms, job_id) in enumerate(finished[:limit])
            if ms < step.finished_before_ms or index < total - step.keep
        ]
        return sum(map(bool, await self._shards.ask_each(gone)))


def _joined(so_far: KeyFired, reply: bytes) -> KeyFired:
    if is_error(reply):
        raise step_error(reply)
    more, *lists = reply.decode().split(SEPARATOR)
    run, cancelled, counted = (tuple(ids.split(KEY_SEPARATOR)) if ids else () for ids in lists)
    return KeyFired(
        run=so_far.run + run,
        cancelled=so_far.cancelled + cancelled,
        counted=so_far.counted + counted,
        has_more=so_far.has_more or bool(more),
    )
