"""Jobs in Redis: snapshots of buckets of time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import (
    CorruptJobError,
    DuplicateJobError,
    JobChangedError,
    JobConflictError,
    JobError,
    JobNotFoundError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job, JobClaim, bounded_error
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.redis.listeners import RedisListeners
from purgatory.jobs.redis.pubsub import RedisPubSub
from purgatory.jobs.redis.record import (
    SEPARATOR,
    add_step,
    decode_job,
    netstrings,
    step_of,
    text_field,
    with_room,
)
from purgatory.jobs.redis.setup import RedisSetup, parse_info
from purgatory.jobs.redis.shard import Client, RedisShard, is_error, step_error
from purgatory.jobs.redis.shards import RedisShards, moment
from purgatory.jobs.stores.base import (
    Added,
    AddStatus,
    Claimed,
    JobCounts,
    JobFilter,
    JobPage,
    JobResult,
    JobReturn,
    KeyFire,
    KeyFired,
    QuarantinedRecord,
    StoreListener,
)
from purgatory.jobs.stores.close_once import CloseOnce
from purgatory.redacted_url import no_redis_url, without_password

_logger = logging.getLogger("purgatory.jobs.redis")

BUCKET_WIDTH_MS = 60_000
"""Jobs that are due within the same minute share a bucket."""

_SHOWN_OF_RECORD = 500


class RedisJobStore:
    """A `JobStore` in Redis 6.2 or Valkey.

    A job's record lies in the hash of the minute that it is due in, and whoever claims goes through
    those minutes in order. Every change is a step of one Lua script; the steps that are asked for
    while a round trip is under way share the next. Each shard has a hash tag of its own, so that
    any number of shards works in a cluster; with more than one, what names a job by its id alone
    asks all of them at once.
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
        timeout: float = 10.0,
    ) -> None:
        """Keep jobs under `prefix`, on the server's clock unless `now_ms` is another.

        A client that is given is left open, and may be a RedisCluster. `shards` must be the same
        for all who share the jobs, for ever (`open` looks); each takes its share of max_waiting.
        With `fsync`, nothing is acknowledged before it is on the server's disk (WAITAOF: Redis 7.2,
        Valkey). A round trip that takes longer than `timeout` seconds raises StoreUnavailableError.
        Raises ValueError for what makes no sense.
        """
        if isinstance(url_or_client, str):
            _check_url(url_or_client)
        if "{" in prefix or "}" in prefix or not prefix:
            raise ValueError(f"prefix is {prefix!r}: braces would be taken for a hash tag")
        if isinstance(shards, bool) or not 1 <= shards <= 1_024:
            raise ValueError(f"shards is {shards!r}: give a number from 1 to 1024")
        if fsync and isinstance(url_or_client, RedisCluster):
            raise ValueError("fsync=True needs one server: set appendfsync to always in a cluster")
        if not isinstance(url_or_client, str) and url_or_client.get_encoder().decode_responses:
            raise ValueError("the client has decode_responses=True: records are bytes, turn it off")
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._given = url_or_client
        self._timeout = timeout
        self._is_fsynced = fsync
        self._now_ms = now_ms
        self._listeners = RedisListeners()
        self._shards = RedisShards(
            RedisShard(
                f"{{{prefix}:{number}}}:",
                settings=self._settings,
                timeout=timeout,
                is_fsynced=fsync,
                on_reply=self._listeners.on_reply,
            )
            for number in range(shards)
        )
        self._client: Client | None = None
        self._hearing: RedisPubSub | None = None
        self._closing = CloseOnce(self._close)

    async def open(self) -> None:
        """Connect; refuse a server that would lose jobs, or that cannot store any."""
        client = self._connect()
        try:
            setup = await self._judge()
            if setup.faults:
                raise StoreNotReadyError(". ".join(setup.faults))
            await self._begin_shards()
        except BaseException:
            await self._disconnect()
            raise
        self._closing = CloseOnce(self._close)
        channels = [shard.channel for shard in self._shards.all]
        # redis-py 5 cannot subscribe in a cluster.
        if hasattr(client, "pubsub"):
            self._hearing = RedisPubSub(
                client,
                channels,
                on_message=self._listeners.on_message,
                on_connected=self._look_for_due,
            )
            await self._hearing.start(self._timeout)

    async def close(self) -> None:
        """Wait for the steps under way, then let go of every connection."""
        await self._closing.wait()

    async def _close(self) -> None:
        try:
            if self._hearing is not None:
                await self._hearing.stop()
                self._hearing = None
        finally:
            await self._disconnect()

    async def check(self) -> list[str]:
        """Return what is wrong with the server's settings, a sentence each."""
        self._shards.require_open()
        setup = await self._judge()
        return setup.faults + setup.warnings

    async def now_ms(self) -> int:
        """Return the server's clock."""
        return min(int(result) for result in await self._shards.ask_all(step_of("now_ms")))

    @property
    def hears_others(self) -> bool:
        """True while the subscription holds."""
        return self._hearing is not None and self._hearing.is_hearing

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` of changes; return the function that ends it."""
        return self._listeners.subscribe(listener)

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs durably; return for each what was done, or why it was refused."""
        self._shards.require_open()
        added: dict[int, Added | JobError] = {}
        # {shard: [(place, step)]}
        parts: dict[RedisShard, list[tuple[int, bytes]]] = {}
        elsewhere = await self._repeated(specs)
        for place, spec in enumerate(specs):
            if place in elsewhere:
                added[place] = Added(elsewhere[place], AddStatus.KEPT)
                continue
            try:
                parts.setdefault(self._shards.home(spec), []).append((place, add_step(spec)))
            except JobError as exc:
                added[place] = exc
        adding = [self._add(shard, part, specs, added) for shard, part in parts.items()]
        # One needs no task of its own.
        await (adding[0] if len(adding) == 1 else asyncio.gather(*adding))
        return [added[place] for place in range(len(specs))]

    def may_wait_on(self, key: str) -> bool:
        """Return True: another process may have put a job on any key since we looked."""
        return True

    async def fire(self, fires: Sequence[KeyFire], *, limit: int) -> list[KeyFired]:
        """Decide the undecided jobs on each key, up to `limit` of each."""
        self._shards.require_open()
        steps = [("fire", *fire) for fire in fires]
        return await self._shards.on_keys(steps, self._cut(limit))

    async def cancel_for_key(self, key: str, *, limit: int) -> KeyFired:
        """Cancel up to `limit` of the undecided jobs on `key`."""
        self._shards.require_open()
        (cancelled,) = await self._shards.on_keys([("cancel_for_key", key)], self._cut(limit))
        return cancelled

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job; return it."""
        step = step_of("cancel", job_id, if_version)
        return await self._change(step, job_id, "cancelled", None, if_version)

    async def reschedule(
        self, job_id: str, deadline: Deadline, *, if_version: int | None = None
    ) -> Job:
        """Move an undecided job's deadline, not beyond its ceiling; return the job."""
        mode = "at" if deadline.delay_ms is None else "delay"
        ms = deadline.at_ms if deadline.delay_ms is None else deadline.delay_ms
        step = step_of("reschedule", job_id, mode, ms, if_version)
        return await self._change(step, job_id, "rescheduled", deadline, if_version)

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a waiting job be due now; return the job."""
        step = step_of("run_now", job_id, if_version)
        return await self._change(step, job_id, "run now", None, if_version)

    async def claim(self, worker: str, *, within_ms: int, limit: int, lease_ms: int) -> Claimed:
        """Lease the first jobs that are due within `within_ms`."""
        self._shards.require_open()
        limit = self._cut(limit)
        if len(self._shards.all) == 1:
            return await self._claim({self._shards.all[0]: limit}, worker, within_ms, lease_ms)
        now_ms = await self.now_ms()
        jobs: list[Job] = []
        # Others may have claimed what was seen: then what comes behind it is looked at.
        while shares := await self._shards.shares(within_ms, limit - len(jobs)):
            claimed = await self._claim(shares, worker, within_ms, lease_ms)
            jobs += claimed.jobs
        jobs.sort(key=_due)
        return Claimed(now_ms, jobs)

    async def renew(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[JobClaim]:
        """Let leases end `lease_ms` from now; return the claims that are lost, or finished."""
        renewed = await self._shards.ask_each(
            [step_of("renew", *claim, lease_ms) for claim in claims]
        )
        return [claim for claim, is_renewed in zip(claims, renewed, strict=True) if not is_renewed]

    async def start(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[Job | None]:
        """Start claimed jobs; None where the claim is lost, unchanged where it is not due yet."""
        started = await self._shards.ask_each(
            [step_of("start", *claim, lease_ms) for claim in claims]
        )
        return [await self._job(found) for found in started]

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """Record how running jobs ended."""
        steps = [
            step_of("finish", *claim, state.value, self._error(error))
            for claim, state, error in results
        ]
        return [bool(result) for result in await self._shards.ask_each(steps)]

    async def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Record that undecided jobs are not to run any more."""
        steps = [step_of("miss", *claim) for claim in claims]
        return [bool(result) for result in await self._shards.ask_each(steps)]

    async def give_back(self, returns: Sequence[JobReturn]) -> list[bool]:
        """Let others have jobs that wait or run."""
        steps = [
            step_of("give_back", *claim, delay_ms, self._error(error))
            for claim, delay_ms, error in returns
        ]
        return [bool(result) for result in await self._shards.ask_each(steps)]

    async def next_due_ms(self) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        found = await self._shards.ask_all(step_of("next_due_ms"))
        return min((int(due_ms) for due_ms in found if due_ms), default=None)

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for what there is not."""
        found = await self._shards.ask_each([step_of("get", job_id) for job_id in job_ids])
        return [await self._job(record) for record in found]

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at no more than a batch."""
        limit = self._cut(limit)
        step = step_of("query", after, limit, where.state, where.handler, where.key)
        jobs: list[Job] = []
        ends = []
        for reply in await self._shards.ask_all(step):
            end, *found = netstrings(reply)
            ends.append(end.decode())
            jobs += await self._jobs(found)
        # A shard has looked no further down than this: what others have below is of later pages.
        end_id = max(ends)
        jobs = sorted((job for job in jobs if job.id >= end_id), key=_id, reverse=True)
        if len(jobs) > limit:
            return JobPage(jobs[:limit], next=jobs[limit - 1].id)
        return JobPage(jobs, next=end_id or None)

    async def counts(self) -> JobCounts:
        """Return how many jobs there are."""
        replies = await self._shards.ask_all(step_of("counts"))
        rows = [[int(count) for count in reply.split(b"\0")] for reply in replies]
        names = ("quarantined", "waiting", "running", "done", "failed", "cancelled")
        return JobCounts(**dict(zip(names, map(sum, zip(*rows, strict=True)), strict=True)))

    async def prune(self, *, finished_before_ms: int, keep: int, limit: int) -> int:
        """Forget finished jobs, the earliest finished first; return how many."""
        limit = self._cut(limit)
        total = 0
        finished: list[tuple[int, str]] = []
        for reply in await self._shards.ask_all(step_of("look_back", limit)):
            count, *lines = reply.split(b"\0")
            total += int(count)
            finished += map(moment, lines)
        finished.sort()
        gone = [
            step_of("forget", job_id)
            for place, (ms, job_id) in enumerate(finished[:limit])
            if ms < finished_before_ms or place < total - keep
        ]
        return sum(map(bool, await self._shards.ask_each(gone)))

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return records that were set aside because they are no jobs, the latest last."""
        limit = self._cut(limit)
        records = []
        for reply in await self._shards.ask_all(step_of("quarantined", limit)):
            for record in netstrings(reply):
                job_id, reason, text = record.decode("utf-8", "replace").split(SEPARATOR, 2)
                records.append(QuarantinedRecord(job_id, reason, text[:_SHOWN_OF_RECORD]))
        return records[-limit:]

    # Connection

    def _connect(self) -> Client:
        client = self._given
        if isinstance(client, str):
            client = Redis.from_url(
                client,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                # Whoever asked decides whether to ask again: a repeated step may answer otherwise.
                retry=Retry(NoBackoff(), 0),
            )
        self._client = client
        self._shards.connect(client)
        return client

    async def _disconnect(self) -> None:
        try:
            await self._shards.close()
        finally:
            client, self._client = self._client, None
            if client is not None and isinstance(self._given, str):
                await client.aclose()

    async def _judge(self) -> RedisSetup:
        append_fsync = await self._append_fsync()
        found = RedisSetup()
        for info in await self._shards.ask_all(step_of("info")):
            setup = RedisSetup.of(
                parse_info(info.decode("utf-8", "replace")),
                append_fsync=append_fsync,
                is_fsynced=self._is_fsynced,
                is_cluster_client=isinstance(self._client, RedisCluster),
            )
            found.faults += setup.faults
            found.warnings += setup.warnings
        # Several shards of one server say the same.
        return RedisSetup(_unique(found.faults), _unique(found.warnings))

    async def _append_fsync(self) -> str | None:
        assert self._client is not None
        try:
            async with asyncio.timeout(self._timeout):
                setting = await self._client.config_get("appendfsync")
        except (RedisError, OSError, TimeoutError):
            # Hosted servers keep CONFIG to themselves. One that is down is seen right behind this.
            return None
        return next((str(value) for value in setting.values()), None)

    async def _begin_shards(self) -> None:
        count = len(self._shards.all)
        for begun in await self._shards.ask_all(step_of("begin", count)):
            width, shards = begun.decode().split(SEPARATOR)
            if int(width) != BUCKET_WIDTH_MS:
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in buckets of {width} ms, and this version's "
                    f"have {BUCKET_WIDTH_MS} ms: use another prefix, or the version that made them"
                )
            if int(shards) != count:
                # Some of its jobs would be nowhere, and never run.
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in {shards} shards, and this store was given "
                    f"shards={count}: give shards={shards}, or use another prefix"
                )

    def _settings(self, tag: str) -> bytes:
        limits = self.limits
        return step_of(
            tag,
            BUCKET_WIDTH_MS,
            None if self._now_ms is None else self._now_ms(),
            self._listeners.name,
            limits.horizon_ms,
            limits.max_waiting // len(self._shards.all),
            limits.past_tolerance_ms,
            limits.max_delay_ms,
            limits.max_batch,
            max(1, limits.max_quarantined // len(self._shards.all)),
        )

    async def _repeated(self, specs: Sequence[JobSpec]) -> dict[int, Job]:
        """Return the jobs of requests that came before, perhaps with another dedupe key, by place.

        A dedupe key that is not the same leads them to different shards, where two jobs would have
        one id. Two such that come at the same time are still stored twice: to keep them apart would
        take a lock in a third place, for what is a mistake of whoever asks. Repeats that say the
        same belong to one shard, where looking and storing are one step.
        """
        if len(self._shards.all) == 1:
            return {}
        asked = [
            (place, job_id)
            for place, spec in enumerate(specs)
            if spec.other_ids
            for job_id in spec.ids
        ]
        found = await self.get([job_id for _, job_id in asked]) if asked else []
        return {place: job for (place, _), job in zip(asked, found, strict=True) if job is not None}

    async def _add(
        self,
        shard: RedisShard,
        part: list[tuple[int, bytes]],
        specs: Sequence[JobSpec],
        added: dict[int, Added | JobError],
    ) -> None:
        results = await shard.do([step for _, step in part])
        if len(self._shards.all) > 1 and b"full" in results:
            await self._add_to_full(shard, part, results)
        for (place, _), result in zip(part, results, strict=True):
            try:
                added[place] = await self._added(specs[place], result)
            except (StoreNotReadyError, StoreReadOnlyError, StoreUnavailableError):
                # Not for this job only.
                raise
            except JobError as exc:
                added[place] = exc

    async def _add_to_full(
        self, shard: RedisShard, part: list[tuple[int, bytes]], results: list[bytes]
    ) -> None:
        """Try again what this shard's share has no room for, where the others' have."""
        counts = await self.counts()
        room = self.limits.max_waiting - counts.waiting - counts.running
        full = [place for place, result in enumerate(results) if result == b"full"][: max(0, room)]
        again = await shard.do([with_room(part[place][1]) for place in full])
        for place, result in zip(full, again, strict=True):
            results[place] = result

    async def _added(self, spec: JobSpec, result: bytes) -> Added:
        status, _, rest = result.partition(b"\0")
        if status == b"added":
            # What the script stored is what this makes of the same clock.
            now_ms = int(rest)
            job = spec.job(now_ms, spec.deadline.resolve(now_ms, self.limits))
            self._listeners.tell(job.id, None)
            return Added(job, AddStatus.ADDED)
        if status == b"full":
            raise StoreFullError.of_limit(self.limits.max_waiting)
        if status == b"deadline":
            spec.deadline.resolve(int(rest), self.limits)
        if is_error(result):
            raise step_error(result)
        job = await self._decode(rest)
        if status == b"duplicate":
            raise DuplicateJobError(job)
        return Added(job, AddStatus(status.decode()))

    async def _change(
        self,
        step: bytes,
        job_id: str,
        action: str,
        deadline: Deadline | None = None,
        if_version: int | None = None,
    ) -> Job:
        (result,) = await self._shards.ask_each([step])
        status, _, rest = result.partition(b"\0")
        if status == b"missing":
            raise JobNotFoundError(job_id)
        if status == b"deadline":
            assert deadline is not None
            deadline.resolve(int(rest), self.limits)
        job = await self._decode(rest)
        if status == b"changed":
            assert if_version is not None
            raise JobChangedError(job, if_version)
        if status == b"conflict":
            raise JobConflictError(job, action)
        return job

    async def _claim(
        self, shares: dict[RedisShard, int], worker: str, within_ms: int, lease_ms: int
    ) -> Claimed:
        """Claim so many of each shard."""
        replies = await asyncio.gather(
            *(
                self._shards.ask(
                    shard, step_of("claim", text_field(worker), within_ms, share, lease_ms)
                )
                for shard, share in shares.items()
            )
        )
        clocks: list[int] = []
        jobs: list[Job] = []
        for reply in replies:
            now_ms, *found = netstrings(reply)
            clocks.append(int(now_ms))
            jobs += await self._jobs(found)
        return Claimed(min(clocks), jobs)

    def _cut(self, limit: int) -> int:
        return min(limit, self.limits.max_batch)

    def _error(self, error: str | None) -> str:
        return text_field(bounded_error(error, self.limits.max_error_length))

    # Records

    async def _decode(self, found: bytes) -> Job:
        try:
            return decode_job(found)
        except CorruptJobError as exc:
            _logger.error("%s", exc, extra={"action": "jobs.redis.quarantine"})
            _, _, record = found.partition(b"\0")
            step = step_of("set_aside", exc.job_id, exc.reason) + b"\0" + record
            await self._shards.ask_all(step)
            raise

    async def _job(self, found: bytes) -> Job | None:
        if not found:
            return None
        try:
            return await self._decode(found)
        except CorruptJobError:
            return None

    async def _jobs(self, several: Iterable[bytes]) -> list[Job]:
        jobs = [await self._job(found) for found in several]
        return [job for job in jobs if job is not None]

    # Listening

    async def _look_for_due(self) -> None:
        due_ms = await self.next_due_ms()
        now_ms = await self.now_ms()
        if due_ms is not None and due_ms <= now_ms + self.limits.horizon_ms:
            self._listeners.tell(None, due_ms)


def _check_url(url: str) -> None:
    try:
        options = parse_url(url)
    except ValueError:
        raise no_redis_url(url) from None
    if "decode_responses" in options:
        raise ValueError(
            f"the URL {without_password(url)!r} has decode_responses: records are bytes, take it "
            "out"
        )


def _due(job: Job) -> tuple[int, str]:
    return job.due_ms, job.id


def _id(job: Job) -> str:
    return job.id


def _unique(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
