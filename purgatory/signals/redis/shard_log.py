"""The log of one shard: what the script does there, as methods."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from purgatory.errors import (
    SignalsConflictError,
    SignalsError,
    SignalsNotReadyError,
    SignalsUnavailableError,
)
from purgatory.group_commit import GroupCommit, RoundTripTimeout
from purgatory.limits import Limits
from purgatory.redis_server.script import (
    CONNECTION_ERRORS,
    FsyncTimeoutError,
    RedisScript,
    Refusal,
    is_read_only,
    netstrings,
    reply_text,
)
from purgatory.redis_server.server import RedisServer
from purgatory.signals.model import (
    REPEAT_PART,
    REPEAT_S,
    Epoch,
    Idempotency,
    LogEntry,
)
from purgatory.signals.redis.entry_codec import (
    AppendReply,
    AppendRequest,
    EntryCodec,
    append_arguments,
    append_replies,
    epochs_of,
    name_arguments,
    text_bytes,
)
from purgatory.signals.redis.script_connection import ScriptConnection, encoded

_TEXT: Final = b"local REPEAT_MS, REPEAT_PART = %d, %f\n%b" % (
    REPEAT_S * 1000,
    REPEAT_PART,
    Path(__file__).with_name("log.lua").read_bytes(),
)
_SCRIPT: Final = RedisScript(_TEXT)
_KEYS: Final = ("meta", "log", "keys", "idle")
# Of one call: the server serves nobody else meanwhile.
MAX_WEIGHT: Final = 500
# What weighs more than that is sent by itself, and the others do not wait for its reply.
HEAVY: Final = 100
# Commands of which fires wait, with short replies: no fire waits behind a long one.
_SHORT: Final = (b"append", b"remember")

_Reply = TypeVar("_Reply")


# uvloop counts in milliseconds: what ends within one is over.
_PRECISION_S: Final = 0.001


class FireDeadlines:
    """Ends the wait for each future that is not done in time, with one timer for all.

    A timer for each would cost a tenth of what a fire costs that shares its round trip. On one
    event loop.
    """

    # Invariant: _waiting is in the order of its times, and _timer is set while any is not done.

    def __init__(self, timeout: RoundTripTimeout) -> None:
        """Give each future that time."""
        self._timeout = timeout
        # (until when, by the time of the loop; future): the first are done first, as a rule.
        self._waiting: deque[tuple[float, Future[Any]]] = deque()
        self._timer: TimerHandle | None = None

    async def wait(self, future: Future[_Reply]) -> _Reply:
        """Return the result of `future`; raise SignalsUnavailableError if it takes too long."""
        # Not by asyncio.timeout: a server may run the first step of its caller outside any task.
        self.add(future)
        try:
            return await future
        except TimeoutError as exc:
            raise no_reply(exc, self._timeout.seconds) from exc

    def add(self, future: Future[Any]) -> float:
        """Have `future` raise TimeoutError unless it is done in time; return its deadline."""
        self._drop_done()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout.left_s
        self._waiting.append((until_s, future))
        if self._timer is None:
            self._timer = loop.call_at(until_s, self._expire, loop)
        return until_s

    def hurry(self) -> None:
        """Give what is waiting no more than the timeout leaves now."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._timeout.left_s
        self._waiting = deque((min(until_s, last_s), future) for until_s, future in self._waiting)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(last_s, self._expire, loop)

    def close(self) -> None:
        """Forget the futures, and end the timer. Idempotent."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_done(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        over_s = loop.time() + _PRECISION_S
        while self._waiting and self._waiting[0][0] <= over_s:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(TimeoutError())
        self._drop_done()
        # For the first of those that are left: most timers find nothing to end.
        self._timer = (
            loop.call_at(self._waiting[0][0], self._expire, loop) if self._waiting else None
        )


class LogState(NamedTuple):
    """Entries that were read from a log, and its state."""

    epochs: list[Epoch]
    head: int
    """The offset of the last entry."""
    trimmed: int
    """The offset through which entries were removed because of age or number."""
    hole: int
    """The last offset at which a key's last entry was removed, with older ones of others kept."""
    holes: int
    """How often that was done."""
    shards: int
    entries: list[LogEntry]
    refusal: str = ""
    """The code of the error by which the server refuses writes; empty if it takes them.

    NOPUBLISH if it takes them, and lets nobody be told.
    """


class KeyPage(NamedTuple):
    """Some of the keys that a log knows."""

    after: int
    """The cursor of the next page; 0 if there is none."""
    forgotten: int
    """No key that the log does not know has an entry after this offset."""
    lost: dict[str, int]
    """Through which offset each key has lost entries."""


class ShardLog:
    """One log, in one slot of a cluster. Raises SignalsError."""

    def __init__(
        self,
        tag: str,
        server: RedisServer,
        deadlines: FireDeadlines,
        *,
        shards: int,
        limits: Limits,
    ) -> None:
        self.tag = tag
        self.codec = EntryCodec(limits.max_value_bytes)
        # With the number of the client's database once it is connected.
        self.channel = f"{tag}appended"
        self.keys = tuple(f"{tag}{name}" for name in _KEYS)
        settings = (
            *(limits.max_signals // shards or 1, limits.max_signal_bytes // shards or 1),
            *(limits.max_signals_per_key, round(limits.max_signal_age * 1000), shards),
        )
        self._settings = " ".join(map(str, settings)).encode()
        self._channel = self.channel.encode()
        # The part of a command that is always the same, encoded once.
        self._command = [str(part).encode() for part in _SCRIPT.command(self.keys, ())]
        self._encoded_command = encoded(self._command)
        self._server = server
        self._timeout = server.timeout
        self._fsync_ms = server.fsync_ms
        self._connection: ScriptConnection | None = None
        self._deadlines = deadlines
        # Done after the request that is sent by itself: others wait for it, as for a batch.
        self._under_way: Future[None] | None = None
        self._commit: GroupCommit[AppendRequest] = GroupCommit(
            self._append_all,
            weigh=lambda request: request.weight,
            max_weight=MAX_WEIGHT,
            owner_of=lambda request: request.owner,
        )

    def connect(self, connection: ScriptConnection | None) -> None:
        """Use the server, which is open now, and append through `connection` while that is open."""
        self._connection = connection
        self.channel = self._server.channel(f"{self.tag}appended")
        self._channel = self.channel.encode()

    async def open_connection(self) -> None:
        """Open the connection for appending, if there is one that is not open."""
        if self._connection is not None:
            client = self._server.client
            assert isinstance(client, Redis)
            with contextlib.suppress(TimeoutError):
                async with self._timeout.limit():
                    await self._connection.open(client)

    async def drain(self) -> None:
        """Wait for the round trip under way."""
        await self._end_under_way()
        await self._commit.join()

    async def append(self, request: AppendRequest) -> AppendReply:
        """Append entries; those of requests that are made meanwhile share a round trip."""
        reply: AppendReply | SignalsConflictError
        if is_heavy([request]):
            (reply,) = await self._append_now([request])
        elif self._under_way or self._commit.is_busy or self._fsync_ms or not self._can_send():
            submitted: Future[AppendReply] = self._commit.submit(request)
            # From here on: what is under way may take as long itself. Not sent yet, it never is.
            reply = await self._deadlines.wait(submitted)
        else:
            reply = await self._append_at_once(request)
        if isinstance(reply, SignalsConflictError):
            raise reply
        return reply

    async def _append_at_once(self, request: AppendRequest) -> AppendReply | SignalsConflictError:
        """Append in this turn of the event loop, without a task."""
        arguments = self._arguments(b"append", *append_arguments([request]))
        sent = self._send(arguments)
        self._under_way = done = asyncio.get_running_loop().create_future()
        until_s = self._deadlines.add(sent)
        text = None
        try:
            with contextlib.suppress(ResponseError, *CONNECTION_ERRORS):
                text = await sent
            if text is None:
                # A task of its own: a server may run the first step of its caller outside any.
                run = partial(self._reply_to, sent, arguments, None)
                text = await asyncio.create_task(self._attempt(run, until_s))
        finally:
            self._under_way = None
            done.set_result(None)
        return append_replies(text)[0]

    async def _end_under_way(self) -> None:
        if self._under_way is not None:
            await asyncio.wait([self._under_way])

    async def read(self, after: int, limit: int) -> LogState:
        """Return up to `limit` entries after an offset, and where the log is."""
        epochs, head, trimmed, hole, holes, shards, refusal, *entries = netstrings(
            await self.run(b"read", b"%d" % after, b"%d" % limit)
        )
        return LogState(
            epochs_of(epochs),
            int(head),
            int(trimmed),
            int(hole),
            int(holes),
            int(shards),
            await self.codec.page(entries),
            refusal.decode(),
        )

    async def keys_after(self, cursor: int) -> KeyPage:
        """Return some of the keys that the log knows; cursors begin and end with 0."""
        after, forgotten, *rows = netstrings(await self.run(b"keys", b"%d" % cursor))
        names = [row.decode("utf-8", "surrogatepass") for row in rows[::2]]
        return KeyPage(
            int(after), int(forgotten), dict(zip(names, map(int, rows[1::2]), strict=True))
        )

    async def last(self, keys: Sequence[str]) -> list[int]:
        """Return the offset of each key's last entry, or the highest that it may have had."""
        return [int(offset) for offset in (await self.run(b"last", *map(text_bytes, keys))).split()]

    async def expire_all(self, oldest: str) -> Epoch:
        """Expire the cursors of every key, unless the oldest epoch is another; return the epoch."""
        (epoch,) = netstrings(await self.run(b"expire", oldest.encode()))
        return epochs_of(epoch)[0]

    async def remember(self, idempotency: Idempotency, response: bytes) -> None:
        """Store the response of a request for its repeats."""
        await self.run(b"remember", *name_arguments(idempotency), response)

    async def knows_another(self, idempotency: Idempotency) -> bool:
        """Return True iff another request with this name was appended here."""
        name, _, fingerprint = name_arguments(idempotency)
        return bool(await self.run(b"known", name, fingerprint))

    async def _append_all(
        self, requests: list[AppendRequest]
    ) -> list[AppendReply | SignalsConflictError]:
        await self._end_under_way()
        return await self._append_now(requests)

    async def _append_now(
        self, requests: Sequence[AppendRequest]
    ) -> list[AppendReply | SignalsConflictError]:
        arguments = append_arguments(requests)
        text = await self.run(b"append", *arguments, fsync_ms=self._fsync_ms)
        return append_replies(text)

    async def run(self, command: bytes, *arguments: bytes, fsync_ms: int | None = None) -> bytes:
        """Return the script's reply to a command."""
        parts = self._arguments(command, *arguments)

        async def run(client: Any) -> bytes:
            is_short = command in _SHORT and fsync_ms is None
            sent = self._send(parts) if is_short and self._can_send() else None
            return await self._reply_to(sent, parts, fsync_ms, client)

        return await self._attempt(run)

    async def _reply_to(
        self,
        sent: Future[bytes | None] | None,
        arguments: Sequence[bytes],
        fsync_ms: int | None,
        client: Any,
    ) -> bytes:
        """Return the reply to a script that was sent; run it by the client if that has to."""
        reply = None if sent is None else await sent
        if reply is None:
            reply = await _SCRIPT.run(client, self.keys, arguments, fsync_ms=fsync_ms)
        return reply

    def _can_send(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def _send(self, arguments: Sequence[bytes]) -> Future[bytes | None]:
        assert self._connection is not None
        count = len(self._command) + len(arguments)
        return self._connection.send_encoded(count, self._encoded_command + encoded(arguments))

    def _arguments(self, command: bytes, *arguments: bytes) -> tuple[bytes, ...]:
        return (command, token_hex(6).encode(), self._channel, self._settings, *arguments)

    async def _attempt(
        self, run: Callable[[Any], Awaitable[_Reply]], until_s: float | None = None
    ) -> _Reply:
        """Return what `run` returns for the client, within the timeout; raise SignalsError."""
        if not self._server.is_open:
            raise SignalsUnavailableError("the signals are not open: open the purgatory first")
        try:
            async with self._timeout.limit() as timeout:
                if until_s is not None and until_s < (timeout.when() or until_s):
                    timeout.reschedule(until_s)
                return await run(self._server.client)
        except FsyncTimeoutError as exc:
            raise SignalsUnavailableError(
                f"{exc}: what was fired may or may not survive a crash of the server"
            ) from exc
        except ResponseError as exc:
            if is_read_only(exc):
                # It is a replica now: the same address may lead to its successor.
                await self._server.note_moved()
            raise _reply_error(reply_text(exc)) from exc
        except CONNECTION_ERRORS as exc:
            if self._connection is not None:
                # What hangs there would delay what is sent next.
                self._connection.abort()
            await self._server.drop_connections()
            raise no_reply(exc, self._timeout.seconds) from exc


def no_reply(exc: Exception, timeout_s: float) -> SignalsUnavailableError:
    """Return the error of a request after which nobody knows whether it was appended."""
    reason = str(exc) or f"{timeout_s:g} s have passed"
    return SignalsUnavailableError(
        f"Redis did not reply ({type(exc).__name__}: {reason}): what was fired may or may not be "
        "in the log, and the same call can be made again"
    )


def is_heavy(requests: Sequence[AppendRequest]) -> bool:
    """Return True iff the server needs long for these together: many entries, or large ones."""
    is_single = len(requests) == 1 and len(requests[0].items) == 1
    return not is_single and sum(request.weight for request in requests) > HEAVY


def _reply_error(message: str) -> SignalsError:
    refusal = Refusal.of(message)
    if refusal is Refusal.FULL:
        return SignalsUnavailableError(
            f"Redis has no memory left ({message}): nothing was fired; raise its maxmemory, or "
            "keep fewer signals: Limits(max_signals=..., max_signal_bytes=...)"
        )
    if refusal in (Refusal.READ_ONLY, Refusal.PASSING):
        return SignalsUnavailableError(
            f"Redis takes no signals now ({message}): the same call can be made again"
        )
    return SignalsNotReadyError(
        f"Redis does not run the script of the signals ({message}): it has to be Redis 6.2 or "
        "Valkey, with a user that may run scripts and INFO, and publish"
    )
