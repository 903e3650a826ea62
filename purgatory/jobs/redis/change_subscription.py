"""The subscription to the changes that other store objects publish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from purgatory.jobs.model.errors import StoreError
from purgatory.redis_server.script import CONNECTION_ERRORS, Client
from purgatory.retry_policy import RetryPolicy

_logger = logging.getLogger("purgatory.jobs.redis")

# After this much silence, the connection is pinged.
_SILENCE_SECONDS = 10.0
_STOP_SECONDS = 0.5
_RECONNECT = RetryPolicy(first_ms=50, max_ms=5_000)


class ChangeSubscription:
    """Subscribes to the channels of all shards, and again after each failure.

    Pub/sub drops what is published while a connection is down. That costs promptness only, and not
    even that: after each connection `on_subscribed` looks at what is due. A stream would store what
    is of no use once the jobs themselves can be queried.
    """

    def __init__(
        self,
        client: Client,
        channels: Sequence[str],
        *,
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._channels = channels
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._task: asyncio.Task[None] | None = None
        self._is_first_try_over = asyncio.Event()
        self.is_subscribed = False
        # Since the last success; logged at its beginning and end, not at each attempt.
        self._is_failing = False

    async def start(self, timeout: float) -> None:
        """Start; return once it is subscribed, has failed, or has tried for `timeout` seconds."""
        self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout):
                await self._is_first_try_over.wait()
        except TimeoutError:
            # It goes on trying: `is_subscribed` says when it has succeeded.
            return

    async def stop(self) -> None:
        """Unsubscribe."""
        self.is_subscribed = False
        task, self._task = self._task, None
        # More than once, if need be: a client that is just connecting may take a cancellation for
        # a timeout of its own.
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_STOP_SECONDS)

    async def _run(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._receive()
            except (*CONNECTION_ERRORS, StoreError) as exc:
                if self.is_subscribed:
                    attempt = 1
                self._note_failure(exc)
            except Exception:
                # A fault of ours or of the client's, such as a message that it cannot read.
                _logger.exception("subscription failed", extra={"action": "jobs.redis.subscribe"})
            finally:
                self.is_subscribed = False
                self._is_first_try_over.set()
            await asyncio.sleep(_RECONNECT.delay_s(attempt))

    def _note_failure(self, error: Exception) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        _logger.warning(
            "not subscribed to the changes of other processes, whose jobs are found by polling "
            "until it succeeds: %s",
            error,
            extra={"action": "jobs.redis.subscribe"},
        )

    async def _receive(self) -> None:
        pubsub = self._client.pubsub()
        try:
            await pubsub.subscribe(*self._channels)
            is_pinged = False
            while True:
                message = await pubsub.get_message(timeout=_SILENCE_SECONDS)
                if message is None:
                    if is_pinged:
                        raise TimeoutError("Redis has been silent for too long")
                    await pubsub.ping()
                    is_pinged = True
                    continue
                is_pinged = False
                await self._handle(message)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it so

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._on_message(message["data"].decode("utf-8", "replace"))
        elif message["type"] == "subscribe" and message["data"] == len(self._channels):
            # Also when the client connected again by itself.
            self.is_subscribed = True
            await self._on_subscribed()
            if self._is_failing:
                self._is_failing = False
                _logger.info("subscribed again", extra={"action": "jobs.redis.subscribed"})
            self._is_first_try_over.set()
