"""What other store objects say that they changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from purgatory.jobs.model.errors import StoreError
from purgatory.jobs.redis.shard import Client
from purgatory.retry_policy import RetryPolicy

_logger = logging.getLogger("purgatory.jobs.redis")

# Silence for so long, and the connection is asked whether it still is one.
_SILENCE_S = 10.0
_RETRY_POLICY = RetryPolicy(first_ms=50, max_ms=5_000)
_CANCEL_TIMEOUT_S = 0.5


class RedisPubSub:
    """Subscribes to the channels of all shards, again and again.

    Pub/sub forgets what is published while a connection is down. That costs promptness only,
    and not even that: after each connection `on_connected` looks at what is due. A stream would
    keep what nobody needs any more once the jobs themselves can be asked.
    """

    def __init__(
        self,
        client: Client,
        channels: Sequence[str],
        *,
        on_message: Callable[[str], None],
        on_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._channels = channels
        self._on_message = on_message
        self._on_connected = on_connected
        self._task: asyncio.Task[None] | None = None
        self._is_first_over = asyncio.Event()
        self.is_hearing = False

    async def start(self, timeout: float) -> None:
        """Begin; return once it hears, or cannot at the moment, or has tried for `timeout`."""
        self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout):
                await self._is_first_over.wait()
        except TimeoutError:
            # It goes on trying: `is_hearing` says when it does.
            return

    async def stop(self) -> None:
        """End."""
        self.is_hearing = False
        task, self._task = self._task, None
        # More than once, if need be: a client that is just connecting may take a cancellation for
        # a timeout of its own.
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_TIMEOUT_S)

    async def _run(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._hear()
            except (RedisError, StoreError, OSError, TimeoutError) as exc:
                if self.is_hearing:
                    attempt = 1
                _logger.warning(
                    "what other processes defer is found by polling until this is over: %s",
                    exc,
                    extra={"action": "jobs.redis.hear"},
                )
            except Exception:
                # A fault of ours or of the client's, such as what it cannot read: heard of, and
                # no reason to be deaf for good.
                _logger.exception("hearing others failed", extra={"action": "jobs.redis.hear"})
            finally:
                self.is_hearing = False
                self._is_first_over.set()
            await asyncio.sleep(_RETRY_POLICY.delay_s(attempt))

    async def _hear(self) -> None:
        pubsub = self._client.pubsub()
        try:
            await pubsub.subscribe(*self._channels)
            is_asked = False
            while True:
                message = await pubsub.get_message(timeout=_SILENCE_S)
                if message is None:
                    if is_asked:
                        raise TimeoutError("Redis has been silent for too long")
                    await pubsub.ping()
                    is_asked = True
                    continue
                is_asked = False
                await self._take(message)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it so

    async def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._on_message(message["data"].decode("utf-8", "replace"))
        elif message["type"] == "subscribe" and message["data"] == len(self._channels):
            # Also where the client connected again by itself.
            self.is_hearing = True
            await self._on_connected()
            self._is_first_over.set()
