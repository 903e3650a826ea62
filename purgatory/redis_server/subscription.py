"""A subscription that stays with its server, and is made again after each loss."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any, Final

from redis.exceptions import ResponseError

from purgatory.background import cancel_until_done
from purgatory.errors import PurgatoryError
from purgatory.redis_server.script import CONNECTION_ERRORS, RedisScript, lost_connection
from purgatory.redis_server.server import RedisServer
from purgatory.retry_policy import RetryPolicy

# So often, a message of our own is published.
BEAT_S: Final = 1.0
_MAX_SILENT: Final = 2
_RECONNECT: Final = RetryPolicy(first_ms=50, max_ms=1_000)
# First a write that changes nothing: a replica publishes, too, to those that are connected to it.
_PUBLISH: Final = RedisScript(b"""
local write = redis.pcall('HDEL', KEYS[1], '')
if type(write) == 'table' and string.find(write.err, 'READONLY', 1, true) then return write end
return redis.call('PUBLISH', ARGV[1], ARGV[2])
""")


async def publish(server: RedisServer, tag: str, channel: str, message: str = "") -> int:
    """Publish to a channel whose name begins with a hash tag; return how many have heard it.

    Those are the subscribers at the server that has the tag. Raises `CONNECTION_ERRORS`.
    """
    heard: int = await server.run(_PUBLISH, [f"{tag}beat"], [channel, message])
    return heard


async def _nothing() -> None:
    """Do nothing."""


class Subscription:
    """Receives what is published to channels whose names begin with one hash tag.

    A connection may stay up to a server that is no longer the one: once a second, a message of our
    own goes where commands go. If nobody hears it there, or it does not come back, the connection
    is lost. Pub/sub drops what is published meanwhile: `on_subscribed` looks for it.
    """

    def __init__(
        self,
        server: RedisServer,
        tag: str,
        channels: Sequence[str],
        *,
        on_message: Callable[[str, bytes], Awaitable[None]],
        on_subscribed: Callable[[], Awaitable[None]] = _nothing,
        on_beat: Callable[[], Awaitable[None]] = _nothing,
        on_lost: Callable[[Exception], None] = lambda error: None,
        on_connected: Callable[[Any], object] = lambda connection: None,
        logger: logging.Logger,
    ) -> None:
        """Subscribe to `channels`, as `server` names them.

        `on_message` gets a channel and the data, `on_connected` the connection before anything is
        under way on it, and `on_lost` why it has ended. All of them run in the task of this, and
        what they raise ends the connection.
        """
        self._server = server
        self._tag = tag
        self._own = server.channel(f"{tag}beat:{token_hex(6)}")
        self._channels = [*channels, self._own]
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._logger = logger
        self._task: asyncio.Task[None] | None = None
        self.is_subscribed = False

    def start(self) -> None:
        """Subscribe, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="purgatory-redis-subscription")

    async def stop(self) -> None:
        """Unsubscribe."""
        self.is_subscribed = False
        task, self._task = self._task, None
        await cancel_until_done(task)

    async def _run(self) -> None:
        attempt = 0
        is_again = False
        while True:
            try:
                await self._receive(is_again=is_again)
            except (PurgatoryError, *CONNECTION_ERRORS) as exc:
                error: Exception = exc
            except Exception as exc:
                error = lost_connection(exc) or exc
                if error is exc:
                    # Such as a message that the client cannot read: one must not be the last.
                    self._logger.exception(
                        "a subscription failed", extra={"action": "redis-subscription-failed"}
                    )
            # Short pauses again, if it had been subscribed.
            attempt = 1 if self.is_subscribed else attempt + 1
            self.is_subscribed, is_again = False, True
            self._on_lost(error)
            await asyncio.sleep(_RECONNECT.delay_s(attempt))

    async def _receive(self, *, is_again: bool) -> None:
        client = await self._server.node(self._tag, is_refreshed=is_again)
        place = self._server.place(self._tag)
        pubsub = client.pubsub()
        try:
            await pubsub.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it so
            self._on_connected(pubsub.connection)
            await pubsub.subscribe(*self._channels)
            silent = 0
            # Something was sent since the last message.
            is_awaited = True
            next_s = asyncio.get_running_loop().time() + BEAT_S
            while True:
                message = await pubsub.get_message(timeout=BEAT_S)
                if message is not None:
                    silent, is_awaited = 0, False
                    await self._handle(message)
                elif is_awaited and (silent := silent + 1) >= _MAX_SILENT:
                    raise TimeoutError("Redis has been silent for too long")
                now_s = asyncio.get_running_loop().time()
                if self.is_subscribed and now_s >= next_s:
                    # Spread over the processes, which may have started together.
                    next_s = now_s + BEAT_S * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
                    await self._beat(pubsub)
                    is_awaited = True
                    if self._server.place(self._tag) != place:
                        raise ConnectionError("another server has taken over")
                    await self._on_beat()
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it so

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "message" and message["channel"] != self._own.encode():
            await self._on_message(message["channel"].decode(), message["data"])
        elif message["type"] == "subscribe":
            if self.is_subscribed:
                # The client's new connection was not given out, and messages may be lost.
                raise ConnectionError("the connection was lost")
            if message["data"] == len(self._channels):
                self.is_subscribed = True
                await self._on_subscribed()

    async def _beat(self, pubsub: Any) -> None:
        heard = None
        try:
            async with self._server.timeout.limit(BEAT_S):
                heard = await publish(self._server, self._tag, self._own)
        except ResponseError:
            # The user may not publish, say: then the server itself has to reply.
            await pubsub.ping()
        except CONNECTION_ERRORS:
            # Without a reply, there is no message either: the silence tells.
            pass
        if heard == 0:
            raise ConnectionError("another server has the messages")
