"""A Lua script, run in one round trip."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

Client = Redis | RedisCluster

# uvloop raises RuntimeError where asyncio raises ConnectionResetError.
CONNECTION_ERRORS: Final = (
    RedisError,
    RedisClusterException,
    OSError,
    TimeoutError,
    RuntimeError,
)

# redis-py takes the code off the text of these, unless a script has put something before it.
_CODES: Final[dict[type[BaseException], str]] = {
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    ReadOnlyError: "READONLY",
    TryAgainError: "TRYAGAIN",
}


def reply_text(exc: BaseException) -> str:
    """Return an error reply as the server sent it, with its code; the text of any other error."""
    code, text = _CODES.get(type(exc), ""), str(exc)
    return text if code in text else f"{code} {text}"


class Refusal(Enum):
    """Why a server has refused a command."""

    FULL = auto()
    READ_ONLY = auto()
    NO_RIGHTS = auto()
    NO_DATABASE = auto()
    PASSING = auto()
    """It is being started, or moved."""
    OTHER = auto()

    @classmethod
    def of(cls, message: str) -> Refusal:
        """Return what an error reply says, as `reply_text` returns it."""
        return next((kind for kind, words in _REFUSALS.items() if words.search(message)), cls.OTHER)


_REFUSALS: Final = {
    Refusal.FULL: re.compile(r"\bOOM\b|maxmemory"),
    Refusal.READ_ONLY: re.compile(r"\b(MISCONF|NOREPLICAS|NOWRITE|READONLY)\b"),
    Refusal.NO_RIGHTS: re.compile(r"\bNOPERM\b|no permissions"),
    Refusal.NO_DATABASE: re.compile("DB index"),
    Refusal.PASSING: re.compile(
        r"\b(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|UNKILLABLE)\b"
    ),
}


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
    """Return True iff a server has refused a write because it is a replica."""
    return "READONLY" in reply_text(exc)


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


# What a script has written before an error stays written, and rights change while clients are
# connected. Redis 6.2 cannot tell them: it refuses the command itself, perhaps behind others.
# They are asked for with a key, as servers may take one from the arguments without counting those.
_REQUIRE_RIGHTS: Final = b"""local are_all_allowed = false
-- Returns the error if the user may not run the commands `names`, or all that this script runs by
-- `call`; else nil.
local function lack_of_rights(names)
  local is_allowed = redis.acl_check_cmd
  if are_all_allowed or not is_allowed then return end
  for _, name in ipairs(names or {%b}) do
    if not is_allowed(name, KEYS[1]) then
      return "NOPERM this user has no permissions to run the '" .. string.lower(name)
        .. "' command, without which the script changes nothing"
    end
  end
  are_all_allowed = not names
end
local function require_rights(names)
  local lack = lack_of_rights(names)
  if lack then error({err = lack}) end
end
"""
_COMMAND: Final = re.compile(rb"\b(?:call|many)\(\s*'([A-Z]+)'")


class RedisScript:
    """A script that the server keeps by its hash, and is sent again if it has forgotten it.

    One that writes more than once calls `require_rights()` before: it fails, with nothing changed,
    if its user lacks the right to one of its commands: each that stands in it as `call('NAME'` or
    `many('NAME'`.
    """

    def __init__(self, text: bytes) -> None:
        """Take the script itself."""
        names = sorted(set(_COMMAND.findall(text)))
        self._text = _REQUIRE_RIGHTS % b", ".join(b"'%b'" % name for name in names) + text
        self._hash = sha1(self._text, usedforsecurity=False).hexdigest()  # as EVALSHA names it

    def load_command(self, keys: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the command that runs it on a server that does not have it."""
        return ("EVAL", self._text, len(keys), *keys, *arguments)

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
            return await _call(client, self.load_command(keys, arguments), fsync_ms)


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
    for result in (reply, synced):
        if isinstance(result, Exception):
            raise result
    if synced[0] < 1:
        raise FsyncTimeoutError(f"Redis did not write to disk within {fsync_ms} ms")
    return reply


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
