"""A lease store in Redis or Valkey."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError

from purgatory.errors import OwnershipError, OwnershipNotReadyError, OwnershipUnavailableError
from purgatory.ownership.lease import (
    MAX_ADDRESS_LENGTH,
    MAX_STATE_BYTES,
    LeaseRecord,
    LeaseResult,
    LeaseStep,
)
from purgatory.redis_server.script import (
    CONNECTION_ERRORS,
    Client,
    RedisScript,
    execute,
    execute_together,
    is_read_only,
)
from purgatory.redis_server.server import RedisServer
from purgatory.timer.clock import Seconds, seconds_of

_logger = logging.getLogger("purgatory.ownership.redis")

_SCRIPT = RedisScript(Path(__file__).with_name("steps.lua").read_bytes())
# Of one pipeline: neither the event loop nor the server is busy with it for long.
_MAX_STEPS = 100
_DAY_SECONDS = 86_400
# Of numbers that scripts count exactly, up to 2**53.
_MAX_DIGITS = 16


class RedisLeaseStore:
    """A `LeaseStore` in Redis 6.2 or Valkey, alone, with replicas, or as a cluster.

    The record of a name is one key. Every step is one call of a script; steps that are run together
    share a round trip.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        prefix: str = "purgatory:lease",
        *,
        retention: Seconds = _DAY_SECONDS,
        timeout: Seconds = 2.0,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        """Keep records under `prefix`, on the server's clock unless `now_us` is another.

        A client that is given is left open, and may be a RedisCluster; URLs may begin with
        `redis+cluster://` and `redis+sentinel://`, as those of RedisSignals. A record, with its
        state, is removed `retention` seconds after its last change; an owned one is renewed.
        Connecting and each reply take at most `timeout` seconds. Raises ValueError for what cannot
        be used.
        """
        retention = seconds_of(retention)
        if not 1 <= retention <= 10 * 365 * _DAY_SECONDS:
            raise ValueError(f"retention is {retention!r}: give 1 second to ten years")
        self._server = RedisServer(url_or_client, "leases", prefix, timeout)
        self._prefix = prefix
        self._kept_ms = round(retention * 1_000)
        self._now_us = now_us
        self._is_checked = False

    async def open(self) -> None:
        """Connect; raise OwnershipNotReadyError for a server that loses records in silence.

        A server that is out of reach is no error here: a process may start before it.
        """
        self._server.open()
        self._is_checked = False
        try:
            await self._check()
        except OwnershipUnavailableError as exc:
            _logger.error("%s", exc, extra={"action": "ownership.redis.open"})
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close a client of ours."""
        await self._server.close()

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps, each for a name of its own; return a record or an error for each."""
        if not self._is_checked:
            try:
                await self._check()
            except OwnershipError as exc:
                return [OwnershipUnavailableError(exc.detail)] * len(steps)
        replies: list[Any] = []
        for start in range(0, len(steps), _MAX_STEPS):
            replies += await self._evaluate(steps[start : start + _MAX_STEPS])
        if any(is_read_only(reply) for reply in replies if isinstance(reply, Exception)):
            await self._server.note_moved()
        return [
            _error(reply) if isinstance(reply, Exception) else _record(step.name, reply)
            for step, reply in zip(steps, replies, strict=True)
        ]

    def key(self, name: str) -> str:
        """Return the key of the record of `name`, which no other prefix and name have."""
        # By the length, the name is told from a prefix that ends as another name begins.
        return f"{self._prefix}:{name}:{len(name)}"

    async def _check(self) -> None:
        """Raise OwnershipNotReadyError, or OwnershipUnavailableError if it cannot be known."""
        try:
            settings = await self._server.settings()
        except CONNECTION_ERRORS as exc:
            raise _error(exc) from exc
        if settings.faults:
            raise OwnershipNotReadyError(". ".join(settings.faults))
        self._is_checked = True
        for warning in settings.warnings:
            _logger.warning("%s", warning, extra={"action": "ownership.redis.open"})

    async def _evaluate(self, steps: Sequence[LeaseStep]) -> list[Any]:
        """Return the reply to each step, or its exception."""
        calls = [([self.key(step.name)], self._arguments(step)) for step in steps]
        replies = await self._call([_SCRIPT.command(*call) for call in calls])
        # A server that was restarted, or that has dropped scripts, has done nothing.
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = await self._call([_SCRIPT.load_command(*calls[at]) for at in unknown])
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return replies

    async def _call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert self._server.is_open, "the store is not open"
        client = self._server.client
        if isinstance(client, RedisCluster):
            # Not a pipeline: it would fail as a whole when one of the nodes is down.
            return await asyncio.gather(
                *(execute(client, *command) for command in commands), return_exceptions=True
            )
        try:
            return await execute_together(client, commands)
        except CONNECTION_ERRORS as exc:
            return [exc] * len(commands)

    def _arguments(self, step: LeaseStep) -> list[str | int | bytes]:
        now = "" if self._now_us is None else self._now_us()
        return [
            *(step.action, self._kept_ms, now, step.token, step.epoch, step.lease_ms * 1_000),
            *(step.instance, step.address, step.version),
            *([] if step.state is None else [step.state]),
        ]


def _record(name: str, reply: list[Any]) -> LeaseResult:
    """Return the record in a reply; an error if it is none that a process of ours has stored."""
    try:
        is_done, epoch, version, address, left_us, state = reply
        # As addresses are checked that a process gives: others send requests there.
        text = address.decode()
        if not text.isprintable() or len(text) > MAX_ADDRESS_LENGTH:
            raise ValueError("its address is none")
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise ValueError(f"its state has {len(state)} bytes")
        return LeaseRecord(
            is_done=bool(is_done),
            epoch=_number(epoch),
            version=_number(version),
            address=text or None,
            remaining_ms=-(-_number(left_us) // 1_000),
            state=state,
        )
    except (ValueError, TypeError) as exc:
        return OwnershipUnavailableError(
            f"the record of {name!r} in Redis is malformed ({exc}): nothing but this library may "
            "write there; delete its key, and the name is free"
        )


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:32]!r} is no number of ours")
    return int(text)


def _error(exc: BaseException) -> OwnershipUnavailableError:
    error = OwnershipUnavailableError(
        f"Redis is not available ({type(exc).__name__}: {exc}): the step may or may not be done, "
        "and the same call can be made again"
    )
    error.__cause__ = exc
    return error
