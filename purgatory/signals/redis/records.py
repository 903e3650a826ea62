"""Records beside the logs: claimed names of requests, and fires whose jobs are not decided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from secrets import token_hex
from typing import Any, Final, NamedTuple

from purgatory.errors import SignalsUnavailableError
from purgatory.group_commit import GroupCommit
from purgatory.redis_server.script import CONNECTION_ERRORS, RedisScript, netstrings
from purgatory.redis_server.server import RedisServer
from purgatory.signals.redis.shard_log import MAX_WEIGHT, ShardLog, name_arguments, name_reused
from purgatory.signals.shared_signals import Idempotency, PendingRecord
from purgatory.timer import SystemClock
from purgatory.timer.clock import NS_PER_MS


class Claim(NamedTuple):
    """The claim of a name in the log that is its home."""

    home: int
    idempotency: Idempotency
    shards: Sequence[int]
    """The logs to which the request is appended."""
    token: bytes
    held: bytes = b""
    """The token of another claim, which this one takes the place of; empty if of none."""


class NameClaims:
    """Has the home of each name know it before its request is appended to other logs.

    A cluster has no step over several servers. A claim whose request was never appended, because
    its process died or its log did not reply, is noticed by the next request with the name: once
    that can no longer be under way, and if none of its logs knows the name, it takes the claim's
    place. Claims of one home share round trips. One event loop.
    """

    def __init__(self, logs: Sequence[ShardLog], timeout_s: float) -> None:
        """Claim in `logs`, for requests that take `timeout_s` at most."""
        self._logs = logs
        # Twice: a server may get a command late.
        self._pending_ms = b"%d" % round(2_000 * timeout_s)
        # {number of a log: the claims in it}
        self._commits: dict[int, GroupCommit[Claim]] = {}

    async def claim(
        self, home: int, idempotency: Idempotency, shards: Sequence[int]
    ) -> Claim | None:
        """Claim a name for a request that is appended to `shards` next.

        Returns the claim, or None if an earlier attempt of the same request has made it. Raises
        SignalsConflictError for a name that is another request's, and other SignalsErrors.
        """
        claim = Claim(home, idempotency, shards, token_hex(6).encode())
        kind, *rest = (await self._submit(claim)).split(b" ")
        if kind == b"doubtful":
            held, numbers = rest
            for number in numbers.split(b","):
                # What is no number of a log was claimed by no process of ours.
                is_known = number.isdigit() and int(number) < len(self._logs)
                if not is_known or await self._logs[int(number)].knows_another(idempotency):
                    raise name_reused()
            kind = await self._submit(claim._replace(held=held))
        if kind not in (b"claimed", b"repeated"):
            raise name_reused()
        return claim if kind == b"claimed" else None

    async def release(self, claim: Claim) -> None:
        """Make a name free again, unless a repeat of the request has claimed it meanwhile.

        Raises SignalsError.
        """
        log = self._logs[claim.home]
        await log.run(b"release", claim.token, keys=[log.key_of_name(claim.idempotency)])

    async def drain(self) -> None:
        """Wait for the round trips under way."""
        for commit in self._commits.values():
            await commit.join()

    async def _submit(self, claim: Claim) -> bytes:
        commit = self._commits.get(claim.home)
        if commit is None:
            commit = self._commits[claim.home] = GroupCommit(
                partial(self._claim_all, self._logs[claim.home]),
                weigh=lambda _: 1,
                max_weight=MAX_WEIGHT,
                owner_of=lambda claim: claim.idempotency.owner,
            )
        reply: bytes = await commit.submit(claim)
        return reply

    async def _claim_all(self, log: ShardLog, claims: Sequence[Claim]) -> list[bytes]:
        keys: list[bytes] = []
        arguments: list[bytes] = []
        for claim in claims:
            keys.append(log.key_of_name(claim.idempotency))
            arguments += (
                *name_arguments(claim.idempotency),
                claim.token,
                b",".join(b"%d" % shard for shard in claim.shards),
                self._pending_ms,
                claim.held,
            )
        return list(netstrings(await log.run(b"claim", *arguments, keys=keys)))


MAX_PENDING: Final = 100_000
MAX_BATCH_BYTES: Final = 1024 * 1024
# Of an age in milliseconds.
_MAX_DIGITS: Final = 15

_OWE: Final = RedisScript(b"""
require_rights()
local room = ARGV[1] - redis.call('ZCARD', KEYS[1])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for at = 2, math.min(#ARGV - 2, room * 3 - 1), 3 do
  redis.call('ZADD', KEYS[1], now_ms - ARGV[at + 2], ARGV[at])
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
end
return room
""")
_READ: Final = RedisScript(b"""
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES')
local rows = {}
for index = 1, #found, 2 do
  rows[#rows + 1] = found[index]
  rows[#rows + 1] = redis.call('HGET', KEYS[2], found[index]) or ''
  rows[#rows + 1] = tostring(math.max(0, now_ms - found[index + 1]))
end
return rows
""")
_SETTLE: Final = RedisScript(b"""
require_rights()
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
""")


class PendingFireRecords:
    """The records of pending fires, oldest first. Every method raises SignalsUnavailableError."""

    def __init__(self, tag: str, server: RedisServer) -> None:
        """Keep them under `tag`."""
        self._keys = (f"{tag}pending", f"{tag}pending-records")
        self._server = server
        # A store that stops answering leaves all fires of a moment here at once: one round trip for
        # them, and one connection of those that the log needs, too.
        self._commit: GroupCommit[tuple[bytes, int, int]] = GroupCommit(
            self._add_all, weigh=lambda request: len(request[0]), max_weight=MAX_BATCH_BYTES
        )

    async def drain(self) -> None:
        """Return once what was submitted is kept, or has failed."""
        await self._commit.join()

    async def add_pending(self, record: bytes, age_ms: int) -> None:
        """Keep a record of what fired `age_ms` ago."""
        await self._commit.submit((record, age_ms, _now_ms()))

    async def _add_all(
        self, requests: list[tuple[bytes, int, int]]
    ) -> list[SignalsUnavailableError | None]:
        # In this order also within a millisecond.
        ids = (f"{number:08}{token_hex(8)}" for number in range(len(requests)))
        now_ms = _now_ms()
        named = [
            (name, record, age_ms + now_ms - asked_ms)
            for name, (record, age_ms, asked_ms) in zip(ids, requests, strict=True)
        ]
        room = await self._run(_OWE, MAX_PENDING, *chain.from_iterable(named))
        return [
            None
            if place < room
            else SignalsUnavailableError(f"{MAX_PENDING} fires are pending, the limit")
            for place in range(len(requests))
        ]

    async def pending(self, limit: int, skipped: int = 0) -> list[PendingRecord]:
        """Return the first records but `skipped`."""
        rows: list[Any] = await self._run(_READ, skipped, skipped + limit - 1)
        return [_record(*rows[at : at + 3]) for at in range(0, len(rows), 3)]

    async def remove_pending(self, ids: Sequence[str]) -> None:
        """Forget records."""
        await self._run(_SETTLE, *(each.encode("utf-8", "surrogateescape") for each in ids))

    async def _run(self, script: RedisScript, *arguments: object) -> Any:
        if not self._server.is_open:
            raise SignalsUnavailableError("the signals are closed")
        try:
            return await self._server.run(script, self._keys, arguments)
        except CONNECTION_ERRORS as exc:
            raise SignalsUnavailableError(
                f"Redis did not answer ({type(exc).__name__}: {exc}): try again"
            ) from exc


def _now_ms() -> int:
    return SystemClock().now_ns() // NS_PER_MS


def _record(name: bytes, record: bytes, age: bytes) -> PendingRecord:
    # Whatever somebody has written there: without a time, it is as one that is damaged.
    is_dated = age.isdigit() and len(age) <= _MAX_DIGITS
    return PendingRecord(
        name.decode("utf-8", "surrogateescape"),
        record if is_dated else b"",
        int(age) if is_dated else 0,
    )
