"""Running steps: each kind in the shards where its jobs belong, as steps.lua reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from purgatory.job_errors import (
    DuplicateJobError,
    IdempotencyConflictError,
    InvalidJobError,
    JobError,
    JobNotFoundError,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job, bounded_error
from purgatory.jobs.model.limits import Bounds, JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import (
    Add,
    Added,
    AddStatus,
    Cancel,
    CancelForKey,
    Claim,
    Claimed,
    Finish,
    Fire,
    FireJob,
    GiveBack,
    JobStep,
    KeyFired,
    KeyStep,
    Miss,
    Pause,
    Prune,
    Renew,
    Reschedule,
    Resume,
    Retry,
    RunNow,
    Start,
    Step,
    VersionedStep,
    WaitAgain,
)
from purgatory.jobs.model.transitions import added, changed_by
from purgatory.jobs.redis.changes import ChangeListeners
from purgatory.jobs.redis.reader import RedisReader
from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR, names_field, step_of
from purgatory.jobs.redis.shards import RedisShard, RedisShards, is_error, step_error, timed_ids
from purgatory.redis_server.script import netstrings

_RunAll = Callable[[Sequence[Any]], Coroutine[Any, Any, list[Any]]]


def _one_by_one(run: Callable[[Any], Awaitable[Any]]) -> _RunAll:
    async def run_all(steps: Sequence[Any]) -> list[Any]:
        return [await run(step) for step in steps]

    return run_all


class RedisSteps(RedisReader):
    """The steps of a RedisJobStore, kind by kind."""

    def __init__(self, shards: RedisShards, limits: JobLimits, listeners: ChangeListeners) -> None:
        super().__init__(shards, limits)
        self._listeners = listeners
        self._runs: Mapping[type[Step[Any]], _RunAll] = {
            Add: self._add_all,
            Fire: self._decide,
            CancelForKey: self._decide,
            Claim: _one_by_one(self._claim),
            Pause: _one_by_one(self._pause),
            Resume: _one_by_one(self._resume),
            Prune: _one_by_one(self._prune),
        }

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
                parts.setdefault(self._shards.home(spec), []).append((index, _add_step(spec)))
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
        replies = await self._shards.ask_each([_job_step(step, self.limits) for step in steps])
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
                _key_step(step, self.limits.cut(step.limit) - so_far.count)
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
            *(self._shards.ask(shard, _claim_step(step, share)) for shard, share in shares.items())
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


# Steps as the script reads them


def _job_step(step: JobStep[Any], limits: JobLimits) -> bytes:
    """Return a step on one job."""
    fields: tuple[object, ...]
    match step:
        # First those of every job.
        case Start():
            bounds = () if step.bounds is None else step.bounds[1:]
            fields = ("start", *step.claim, step.lease_ms, step.attempt, *bounds)
        case Finish():
            fields = ("finish", *step.claim, step.state, _error_field(step.error, limits))
        case Renew():
            fields = ("renew", *step.claim, step.lease_ms)
        case FireJob():
            fired = (text for pair in step.fired for text in pair)
            fields = ("fire_job", step.id, step.round, *fired)
        case GiveBack():
            error = _error_field(step.error, limits)
            fields = ("give_back", *step.claim, step.delay_ms, error, step.hold_ms)
        case WaitAgain():
            keys = KEY_SEPARATOR.join(step.keys)
            wait = (*_deadline(step.deadline), keys, step.needed, step.on_fire)
            fields = ("wait_again", *step.claim, *wait, step.payload_json)
        case Miss():
            fields = ("miss", *step.claim)
        case Cancel():
            fields = ("cancel", step.id, step.if_version)
        case Reschedule():
            fields = ("reschedule", step.id, step.if_version, *_deadline(step.deadline))
        case RunNow():
            fields = ("run_now", step.id, step.if_version)
        case Retry():
            fields = ("retry", step.id, step.if_version)
        case _:
            raise TypeError(f"{step!r} is not a step of the job model")
    return step_of(*fields)


def _key_step(step: KeyStep, limit: int) -> bytes:
    """Return a step on the jobs on a key, with this limit."""
    if isinstance(step, Fire):
        return step_of("fire", step.key, step.value_json, limit)
    assert isinstance(step, CancelForKey)
    return step_of("cancel_for_key", step.key, limit)


def _claim_step(step: Claim, limit: int) -> bytes:
    """Return the step that claims, with this limit."""
    bounds = [field for each in step.bounds for field in each]
    names = names_field(step.handlers)
    worker = (f"={step.worker}", step.within_ms, limit, step.lease_ms)
    return step_of("claim", *worker, names, step.clock_ms, *bounds)


def _add_step(spec: JobSpec) -> bytes:
    """Return the step that adds a job; raise InvalidJobError for what cannot be stored."""
    ceiling_ms = spec.ceiling_delay_ms
    mode, ms = _deadline(spec.deadline)
    step = SEPARATOR.join(
        (
            "add",
            spec.id,
            mode,
            str(ms),
            "" if ceiling_ms is None else str(ceiling_ms),
            spec.on_conflict.value,
            str(spec.max_attempts),
            spec.on_fire.value,
            spec.misfire.value,
            spec.dedupe_key or "",
            KEY_SEPARATOR.join(spec.keys),
            spec.handler,
            spec.payload_json,
            KEY_SEPARATOR.join(spec.request or ()),
            spec.owner or "",
            "" if spec.needed == 1 else str(spec.needed),
            spec.concurrency_key or "",
            spec.traceparent or "",
            "",
        )
    )
    separators = max(0, len(spec.keys) - 1) + (spec.request is not None)
    if step.count(SEPARATOR) != 18 or step.count(KEY_SEPARATOR) > separators:
        raise InvalidJobError(
            f"job {spec.id[:64]!r} holds control characters: make it with JobSpec.of, which says "
            "where"
        )
    return step.encode()


def _error_field(error: str | None, limits: JobLimits) -> str:
    """Return a text that may be empty or missing, so that the two differ."""
    return "" if error is None else f"={bounded_error(error, limits.max_error_length)}"


def _deadline(deadline: Deadline) -> tuple[str, int | None]:
    if deadline.delay_ms is None:
        return "at", deadline.at_ms
    return "delay", deadline.delay_ms
