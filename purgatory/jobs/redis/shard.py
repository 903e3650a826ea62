"""The keys of one shard, and the round trip that changes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from redis.exceptions import ResponseError

from purgatory.job_errors import StoreUnavailableError
from purgatory.jobs.redis.errors import no_reply_error, reply_error
from purgatory.jobs.redis.step_batches import StepBatches
from purgatory.redis_server.script import (
    CONNECTION_ERRORS,
    FsyncTimeoutError,
    RedisScript,
    netstrings,
)
from purgatory.redis_server.server import RedisServer

# Not by a path: executors of Spark may have this package in an archive.
_SCRIPT = RedisScript((files(__package__) / "steps.lua").read_bytes())
_INDEXES = (
    *(
        "at",
        "buckets",
        "held",
        "finished",
        "on_key",
        "by_key",
        "by_handler",
        "dedupe",
        "quarantined",
    ),
    *("waiting", "running", "done", "failed", "cancelled", "meta", "places", "place_names"),
    "blocked",
    "aside",
    "requests",
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
    b"look_back\0",
    b"quarantined\0",
    b"workers\0",
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
        is_fsynced: bool,
        on_reply: Callable[[int | None, list[str]], None],
    ) -> None:
        self.tag = tag
        self.channel = f"{tag}changes"
        self._keys = [f"{tag}{name}" for name in _INDEXES]
        self._settings = settings
        self._server = server
        self._is_fsynced = is_fsynced
        self._on_reply = on_reply
        self._commit = StepBatches(self._send)

    def run(self, steps: list[bytes]) -> Awaitable[list[bytes]]:
        """Return the result of each step, in order. Raises StoreError.

        A step that failed has a result that `is_error`.
        """
        return self._commit.run(steps)

    async def drain(self) -> None:
        """Wait for the round trip under way."""
        await self._commit.drain()

    async def _send(self, steps: list[bytes]) -> list[bytes]:
        timeout = self._server.timeout
        is_read = all(map(_is_read, steps))
        is_fsynced = self._is_fsynced and not is_read
        fsync_ms = round(timeout.seconds * 900) if is_fsynced else None
        arguments = [self._settings(self.tag), *steps]
        try:
            async with timeout.limit():
                reply: bytes = await _SCRIPT.run(
                    self._server.client, self._keys, arguments, fsync_ms=fsync_ms
                )
        except FsyncTimeoutError as exc:
            raise StoreUnavailableError(
                f"{exc}: the steps may or may not survive a crash, and the same call can be made "
                "again"
            ) from exc
        except ResponseError as exc:
            raise reply_error(str(exc)) from exc
        except CONNECTION_ERRORS as exc:
            raise no_reply_error(exc, is_read=is_read) from exc
        soonest, changes, *results = netstrings(reply)
        changed = changes.decode("utf-8", "replace").split("\1") if changes else []
        if soonest or changed:
            self._on_reply(int(soonest) if soonest else None, changed)
        if any(map(_is_read_only, results)):
            await self._server.note_moved()
        return results


def _is_read(step: bytes) -> bool:
    return step.startswith(_READS)


def _is_read_only(result: bytes) -> bool:
    return is_error(result) and b"READONLY" in result


def is_error(result: bytes) -> bool:
    """Return True iff a step failed; `step_error` returns its error."""
    return result.startswith(_ERROR)


def step_error(result: bytes) -> Exception:
    """Return the error of a step that failed."""
    return reply_error(result[len(_ERROR) :].decode("utf-8", "replace"))
