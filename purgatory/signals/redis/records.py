"""Records beside the logs: claimed names of requests, and fires whose jobs are not decided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, NamedTuple

from purgatory.errors import SignalsUnavailableError
from purgatory.group_commit import GroupCommit
from purgatory.redis_server.script import CONNECTION_ERRORS, RedisScript, netstrings
from purgatory.redis_server.server import RedisServer
from purgatory.signals.model import Idempotency
from purgatory.signals.redis.entry_codec import name_arguments, name_reused
from purgatory.signals.redis.shard_log import MAX_WEIGHT, ShardLog


class NameClaim(NamedTuple):
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
        self._commits: dict[int, GroupCommit[NameClaim]] = {}

    async def claim(
        self, home: int, idempotency: Idempotency, shards: Sequence[int]
    ) -> NameClaim | None:
        """NameClaim a name for a request that is appended to `shards` next.

        Returns the claim, or None if an earlier attempt of the same request has made it. Raises
        SignalsConflictError for a name that is another request's, and other SignalsErrors.
        """
        claim = NameClaim(home, idempotency, shards, token_hex(6).encode())
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

    async def release(self, claim: NameClaim) -> None:
        """Make a name free again, unless a repeat of the request has claimed it meanwhile.

        Raises SignalsError.
        """
        name, *_ = name_arguments(claim.idempotency)
        await self._logs[claim.home].run(b"release", name, claim.token)

    async def drain(self) -> None:
        """Wait for the round trips under way."""
        for commit in self._commits.values():
            await commit.join()

    async def _submit(self, claim: NameClaim) -> bytes:
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

    async def _claim_all(self, log: ShardLog, claims: Sequence[NameClaim]) -> list[bytes]:
        arguments: list[bytes] = []
        for claim in claims:
            arguments += (
                *name_arguments(claim.idempotency),
                claim.token,
                b",".join(b"%d" % shard for shard in claim.shards),
                self._pending_ms,
                claim.held,
            )
        return list(netstrings(await log.run(b"claim", *arguments)))


MAX_PENDING: Final = 100_000
MAX_BATCH_BYTES: Final = 1024 * 1024

_ADD: Final = RedisScript(b"""
require_rights()
local room = ARGV[1] - redis.call('LLEN', KEYS[1])
for at = 2, math.min(#ARGV, room + 1) do
  redis.call('RPUSH', KEYS[1], ARGV[at])
end
return room
""")
_READ: Final = RedisScript(b"return redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])")
# Those that are decided are the first, or close behind.
_REMOVE: Final = RedisScript(b"""
require_rights()
for _, record in ipairs(ARGV) do
  redis.call('LREM', KEYS[1], 1, record)
end
""")


class PendingFireRecords:
    """The records of pending fires, oldest first. Every method raises SignalsUnavailableError."""

    def __init__(self, tag: str, server: RedisServer) -> None:
        """Keep them under `tag`."""
        self._key = f"{tag}pending"
        self._server = server
        # A store that stops answering leaves all fires of a moment here at once: one round trip for
        # them, and one connection of those that the log needs, too.
        self._commit: GroupCommit[bytes] = GroupCommit(
            self._add_all, weigh=len, max_weight=MAX_BATCH_BYTES
        )

    async def drain(self) -> None:
        """Return once what was submitted is kept, or has failed."""
        await self._commit.join()

    async def add(self, record: bytes) -> None:
        """Keep a record."""
        await self._commit.submit(record)

    async def _add_all(self, records: list[bytes]) -> list[SignalsUnavailableError | None]:
        room = await self._run(_ADD, MAX_PENDING, *records)
        return [
            None
            if place < room
            else SignalsUnavailableError(f"{MAX_PENDING} fires are pending, the limit")
            for place in range(len(records))
        ]

    async def first(self, limit: int, skipped: int = 0) -> list[bytes]:
        """Return the first records but `skipped`."""
        records: list[bytes] = await self._run(_READ, skipped, skipped + limit - 1)
        return records

    async def remove(self, records: Sequence[bytes]) -> None:
        """Forget one record equal to each of these."""
        await self._run(_REMOVE, *records)

    async def _run(self, script: RedisScript, *arguments: object) -> Any:
        if not self._server.is_open:
            raise SignalsUnavailableError("the signals are closed")
        try:
            return await self._server.run(script, [self._key], arguments)
        except CONNECTION_ERRORS as exc:
            raise SignalsUnavailableError(
                f"Redis did not answer ({type(exc).__name__}: {exc}): try again"
            ) from exc
