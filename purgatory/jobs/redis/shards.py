"""The shards of a store: their keys, the round trips that change them, and Redis's errors."""

from __future__ import annotations

import asyncio
import logging
from binascii import crc32
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.resources import files
from itertools import islice
from operator import itemgetter

from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, ResponseError

from purgatory.errors import PurgatoryClosedError
from purgatory.group_commit import GroupCommit
from purgatory.job_errors import (
    CorruptJobError,
    StoreError,
    StoreNotReadyError,
    StoreOutOfSpaceError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.redis.record import decode_job, names_field, step_of
from purgatory.redis_server.script import (
    CONNECTION_ERRORS,
    FsyncTimeoutError,
    RedisScript,
    Refusal,
    netstrings,
    reply_text,
)
from purgatory.redis_server.server import RedisServer

_logger = logging.getLogger("purgatory.jobs.redis")

# The ways out of a server that takes no writes.
_READ_ONLY = {
    "MISCONF": "it cannot write to its disk; see its log, and whether the disk is full",
    "NOREPLICAS": "too few replicas are connected to it; see its min-replicas-to-write, and its "
    "replicas",
    "READONLY": "it is a replica; connect to the primary",
}


def no_reply_error(exc: BaseException, *, is_read: bool = False) -> StoreError:
    """Return the error for a reply that did not come, to a request that only reads or another."""
    # A client reports what the server replied to its login as a lost connection.
    reason: BaseException | None = exc
    while reason is not None:
        if isinstance(reason, AuthenticationError | AuthorizationError):
            return StoreNotReadyError(
                f"Redis refuses the login ({reason}): check the user and the password in its URL"
            )
        if isinstance(reason, ResponseError) and not isinstance(reason, NoScriptError):
            return reply_error(reply_text(reason))
        reason = reason.__cause__ or reason.__context__
    # Nothing is uncertain after a read, such as the one with which a store is opened.
    way_out = (
        "check the server and its address"
        if is_read
        else "the step may or may not be done, and the same call can be made again"
    )
    return StoreUnavailableError(f"Redis did not reply ({type(exc).__name__}: {exc}): {way_out}")


def reply_error(message: str) -> StoreError:
    """Return the error for an error reply."""
    match Refusal.of(message):
        case Refusal.FULL:
            return StoreOutOfSpaceError(
                f"Redis has no memory left ({message}): nothing was stored; raise maxmemory, or "
                "keep finished jobs for less time"
            )
        case Refusal.READ_ONLY:
            known = (way_out for code, way_out in _READ_ONLY.items() if code in message)
            way_out = next(known, _READ_ONLY["NOREPLICAS"])
            return StoreReadOnlyError(f"Redis takes no writes ({message}): {way_out}")
        case Refusal.NO_RIGHTS:
            return StoreReadOnlyError(
                f"Redis takes no writes ({message}): connect with a user that may write"
            )
        case Refusal.NO_DATABASE:
            return StoreNotReadyError(
                f"Redis has no such database ({message}): check the number at the end of its URL"
            )
        case Refusal.PASSING:
            return StoreUnavailableError(
                f"Redis is not available now ({message}): the same call can be made again"
            )
    return StoreNotReadyError(
        f"Redis does not run the steps of jobs ({message}): it has to be Redis 6.2 or Valkey, with "
        "scripts allowed, and nothing else may use the keys of this prefix"
    )


# Of one round trip: the server serves no other client meanwhile.
MAX_STEPS = 1_000
MAX_BYTES = 4 * 1024 * 1024
_BYTES_OF_STEP = MAX_BYTES // MAX_STEPS


class StepBatches:
    """A `GroupCommit` of lists of steps; `run` returns a list of results."""

    def __init__(self, send: Callable[[list[bytes]], Awaitable[list[bytes]]]) -> None:
        """Prepare; `send` runs steps in order and returns their results in order."""
        self._send = send
        self._commit: GroupCommit[Sequence[bytes]] = GroupCommit(
            self._send_batch, weigh=_weight, max_weight=MAX_STEPS
        )
        self.drain = self._commit.join
        """Wait for the round trip under way."""

    def run(self, steps: Sequence[bytes]) -> Awaitable[list[bytes]]:
        """Return the results of `steps`; raise what `send` raises."""
        if 0 < len(steps) <= MAX_STEPS:
            return self._commit.submit(steps)
        return self._run_chunks(steps)

    async def _run_chunks(self, steps: Sequence[bytes]) -> list[bytes]:
        chunks = [steps[at : at + MAX_STEPS] for at in range(0, len(steps), MAX_STEPS)]
        # Queued together: they stay in order, and callers that come meanwhile wait behind them.
        several = await asyncio.gather(*map(self._commit.submit, chunks))
        return [result for results in several for result in results]

    async def _send_batch(self, batch: list[Sequence[bytes]]) -> list[list[bytes]]:
        if len(batch) == 1:
            return [await self._send(list(batch[0]))]
        results = iter(await self._send([step for steps in batch for step in steps]))
        return [list(islice(results, len(steps))) for steps in batch]


def _weight(steps: Sequence[bytes]) -> int:
    """Return the number of steps; more, if they are large."""
    return max(len(steps), sum(map(len, steps)) // _BYTES_OF_STEP)


# Not by a path: executors of Spark may have this package in an archive.
_SCRIPT = RedisScript((files(__package__) / "steps.lua").read_bytes())
# In the order of the script.
_INDEXES = (
    *("jobs", "due", "held", "queued", "finished", "slots", "on_key", "listed", "dedupe"),
    *("quarantined", "requests", "meta", "blocked", "paused"),
    *("waiting", "running", "done", "failed", "cancelled"),
)
_ERROR = b"error\0"
# Reads need not wait for a disk.
_READS = (
    b"now_ms",
    b"paused",
    b"get\0",
    b"query\0",
    b"requested\0",
    b"counts",
    b"first_finished\0",
)


class RedisShard:
    """One hash tag, and so one slot of a cluster, whose steps run one after another.

    `on_reply` is called with the changes of each round trip: when the first of the added jobs is
    due, if that is soon, and `id NUL due_ms` for each other job that changed, with due_ms empty
    unless it is soon.
    """

    def __init__(
        self,
        tag: str,
        *,
        settings: Callable[[str], bytes],
        server: RedisServer,
        on_reply: Callable[[int | None, list[str]], None],
    ) -> None:
        self.tag = tag
        self.channel = f"{tag}changes"
        self._keys = [f"{tag}{name}" for name in _INDEXES]
        self._settings = settings
        self._server = server
        self._on_reply = on_reply
        batches = StepBatches(self._send)
        self.run = batches.run
        """Return the result of each step, in order. Raises StoreError.

        A step that failed has a result that `is_error`.
        """
        self.drain = batches.drain
        """Wait for the round trip under way."""

    async def _send(self, steps: list[bytes]) -> list[bytes]:
        is_read = all(step.startswith(_READS) for step in steps)
        fsync_ms = None if is_read else self._server.fsync_ms
        arguments = [self._settings(self.channel), *steps]
        try:
            reply: bytes = await self._server.run(_SCRIPT, self._keys, arguments, fsync_ms=fsync_ms)
        except FsyncTimeoutError as exc:
            raise StoreUnavailableError(
                f"{exc}: the steps may or may not survive a crash, and the same call can be made "
                "again"
            ) from exc
        except ResponseError as exc:
            raise reply_error(reply_text(exc)) from exc
        except CONNECTION_ERRORS as exc:
            raise no_reply_error(exc, is_read=is_read) from exc
        soonest, changes, *results = netstrings(reply)
        changed = changes.decode("utf-8", "replace").split("\1") if changes else []
        if soonest or changed:
            self._on_reply(int(soonest) if soonest else None, changed)
        if any(is_error(result) and b"READONLY" in result for result in results):
            await self._server.note_moved()
        return results


def is_error(result: bytes) -> bool:
    """Return True iff a step failed; `step_error` returns its error."""
    return result.startswith(_ERROR)


def step_error(result: bytes) -> Exception:
    """Return the error of a step that failed."""
    return reply_error(result[len(_ERROR) :].decode("utf-8", "replace"))


class RedisShards:
    """Asks one shard, or each, and decodes the jobs in the replies.

    What asks raises PurgatoryClosedError unless connected.
    """

    def __init__(self, shards: Iterable[RedisShard]) -> None:
        self.all = list(shards)
        self._is_open = False

    def open(self) -> None:
        """Allow steps: the server is there."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse new steps, and wait for the round trips under way."""
        self._is_open = False
        for shard in self.all:
            await shard.drain()

    def require_open(self) -> None:
        """Raise PurgatoryClosedError unless connected."""
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")

    async def ask(self, shard: RedisShard, step: bytes) -> bytes:
        """Return the result of one step in one shard."""
        self.require_open()
        (result,) = await shard.run([step])
        if is_error(result):
            raise step_error(result)
        return result

    async def ask_all(self, step: bytes) -> list[bytes]:
        """Return the results of one step in every shard."""
        # One needs no task of its own.
        if len(self.all) == 1:
            return [await self.ask(self.all[0], step)]
        return await asyncio.gather(*(self.ask(shard, step) for shard in self.all))

    async def ask_each(self, steps: list[bytes]) -> list[bytes]:
        """Run steps that name a job by its id, in any shard; return a result for each."""
        self.require_open()
        if len(self.all) == 1:
            results = await self.all[0].run(steps)
        else:
            rows = await asyncio.gather(*(shard.run(steps) for shard in self.all))
            # That of the shard which has the job; empty if none has.
            results = [next(filter(None, column), b"") for column in zip(*rows, strict=True)]
        for result in results:
            if is_error(result):
                raise step_error(result)
        return results

    async def decode(self, found: bytes) -> Job:
        """Return the job in `id NUL record`; raise CorruptJobError once it is quarantined."""
        try:
            return decode_job(found)
        except CorruptJobError as exc:
            _logger.error("%s", exc, extra={"action": "jobs.redis.quarantine"})
            _, _, record = found.partition(b"\0")
            step = step_of("quarantine", exc.job_id, exc.reason) + b"\0" + record
            await self.ask_all(step)
            raise

    async def job(self, found: bytes) -> Job | None:
        """Return the job in a reply; None if the reply is empty or the record corrupt."""
        if not found:
            return None
        try:
            return await self.decode(found)
        except CorruptJobError:
            return None

    async def jobs(self, several: Iterable[bytes]) -> list[Job]:
        """Return the jobs in several replies."""
        jobs = [await self.job(found) for found in several]
        return [job for job in jobs if job is not None]

    async def shares(
        self, within_ms: int, limit: int, handlers: Sequence[str] | None
    ) -> Counter[RedisShard]:
        """Return how many of the first `limit` jobs each shard has."""
        due: list[tuple[int, str, RedisShard]] = []
        if limit > 0:
            step = step_of("peek_due", within_ms, limit, names_field(handlers))
            for shard, reply in zip(self.all, await self.ask_all(step), strict=True):
                due += ((*timed, shard) for timed in timed_ids(reply))
        due.sort(key=itemgetter(0, 1))
        return Counter(shard for _, _, shard in due[:limit])

    def home(self, spec: JobSpec) -> RedisShard:
        """Return the shard where a new job belongs."""
        # Jobs with the same dedupe key have to meet in one shard, and so have the repeats of one
        # request. Those with the same concurrency key are counted where they meet.
        own_name = spec.id if spec.request is None else spec.request.name
        name = spec.dedupe_key or spec.concurrency_key or own_name
        return self.all[crc32(name.encode("utf-8", "backslashreplace")) % len(self.all)]


def timed_ids(reply: bytes) -> list[tuple[int, str]]:
    """Return the times and the ids in a reply to `peek_due` or `first_finished`."""
    pairs = (line.partition(b"\0") for line in reply.split(b"\1") if line)
    return [(int(ms), job_id.decode("utf-8", "backslashreplace")) for ms, _, job_id in pairs]
