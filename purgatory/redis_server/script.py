"""A Lua script, run in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisClusterException, RedisError

Client = Redis | RedisCluster

# uvloop raises RuntimeError where asyncio raises ConnectionResetError.
CONNECTION_ERRORS: Final = (
    RedisError,
    RedisClusterException,
    OSError,
    TimeoutError,
    RuntimeError,
)


def lost_connection(exc: Exception) -> RedisConnectionError | None:
    """Return the error of a connection that was lost, if that is what `exc` is; else None.

    A connection of redis-py that is closed while another task uses it has no reader and no writer
    any more, which neither it nor asyncio expects.
    """
    if not isinstance(exc, AttributeError | TypeError):
        return None
    frame = exc.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    room = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__"))
    if room.partition(".")[0] not in ("redis", "asyncio", "uvloop"):
        return None
    lost = RedisConnectionError("the connection was closed while it was used")
    lost.__cause__ = exc
    return lost


def is_read_only(exc: BaseException) -> bool:
    """Return True iff a server has refused a write because it is a replica.

    redis-py takes that code off the text, unless a script has put something before it.
    """
    return isinstance(exc, ReadOnlyError) or "READONLY" in str(exc)


async def execute(client: Client, *command: Any) -> Any:
    """Return the reply to a command; raise `CONNECTION_ERRORS`."""
    await drop_closed(client)
    try:
        return await client.execute_command(*command)
    except (AttributeError, TypeError) as exc:
        raise lost_connection(exc) or exc from exc.__cause__


async def execute_together(client: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the reply to each command, or its error; raise `CONNECTION_ERRORS`."""
    await drop_closed(client)
    try:
        async with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return await pipe.execute(raise_on_error=False)
    except (AttributeError, TypeError) as exc:
        raise lost_connection(exc) or exc from exc.__cause__


class RedisScript:
    """A script that the server keeps by its hash, and is sent again if it has forgotten it."""

    def __init__(self, text: bytes) -> None:
        """Take the script itself."""
        self._text = text
        self._hash = sha1(self._text, usedforsecurity=False).hexdigest()  # as EVALSHA names it

    def command(self, keys: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the command that runs it on a server that has it."""
        return ("EVALSHA", self._hash, len(keys), *keys, *arguments)

    async def run(
        self,
        client: Client,
        keys: Sequence[Any],
        arguments: Sequence[Any],
        *,
        fsync_ms: int | None = None,
    ) -> Any:
        """Return the script's reply.

        With `fsync_ms`, wait so long until the server has written to its disk; FsyncTimeoutError if
        it has not: the script has run, and a crash may lose what it did. Raises RedisError, OSError
        and, on uvloop, RuntimeError for a connection that was reset.
        """
        # A server that was restarted, or that has dropped scripts, does not know ours any more: it
        # has done nothing.
        try:
            return await _call(client, self.command(keys, arguments), fsync_ms)
        except NoScriptError:
            return await _call(client, ("EVAL", self._text, len(keys), *keys, *arguments), fsync_ms)


async def drop_closed(client: Client) -> None:
    """Close the idle connections of `client` that the server has closed, as after its `timeout`.

    Then the next command opens another. redis-py sends it on the old one, and nobody knows whether
    it was done. Call it before what may not be repeated.
    """
    # Not isinstance, which takes microseconds for a class of redis-py. A version without these
    # names keeps its closed connections.
    nodes = getattr(client, "nodes_manager", None)
    if nodes is None:
        pool = getattr(client, "connection_pool", None)
        idle = getattr(pool, "_available_connections", ())
    else:
        idle = [each for node in nodes.nodes_cache.values() for each in getattr(node, "_free", ())]
    for connection in [each for each in idle if _is_ended(each)]:
        await connection.disconnect(nowait=True)


def _is_ended(connection: Any) -> bool:
    reader: asyncio.StreamReader | None = getattr(connection, "_reader", None)
    return reader is not None and (reader.at_eof() or reader.exception() is not None)


class FsyncTimeoutError(TimeoutError):
    """The server has not written to its disk in time."""


async def _call(client: Client, command: tuple[Any, ...], fsync_ms: int | None) -> Any:
    if fsync_ms is None:
        return await execute(client, *command)
    # On the same connection: WAITAOF waits for what that has written.
    assert isinstance(client, Redis)
    reply, synced = await execute_together(client, [command, ("WAITAOF", 1, 0, fsync_ms)])
    _require_synced(synced, fsync_ms, reply)
    return reply


def _require_synced(synced: Any, fsync_ms: int, *replies: Any) -> None:
    for result in (*replies, synced):
        if isinstance(result, Exception):
            raise result
    if synced[0] < 1:
        raise FsyncTimeoutError(f"Redis did not write to disk within {fsync_ms} ms")


def netstrings(reply: bytes) -> Iterator[bytes]:
    """Yield the texts of a row of `length:text`, which scripts return as one string.

    One string is parsed faster than an array of them.
    """
    at = 0
    while at < len(reply):
        colon = reply.index(b":", at)
        start = colon + 1
        size = int(reply[at:colon])
        at = start + size
        if size < 0 or at > len(reply):
            raise ValueError(f"a text of {size} bytes does not fit into a reply of {len(reply)}")
        yield reply[start:at]
