"""The changes of jobs: listeners here, and what other store objects publish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence

from purgatory.background import OutageLog
from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR
from purgatory.jobs.stores.protocol import StoreListeners
from purgatory.redis_server.server import RedisServer
from purgatory.redis_server.subscription import Subscription

_logger = logging.getLogger("purgatory.jobs.redis")

_TIME = re.compile(r"[0-9]{1,15}", re.ASCII)


class ChangeListeners(StoreListeners):
    """Notifies of changes made by this store object and by others."""

    def __init__(self) -> None:
        super().__init__()
        # Distinguishes our own messages from those of others.
        self.name = secrets.token_hex(8)

    def on_reply(self, soonest_ms: int | None, changes: list[str]) -> None:
        """Notify of the changes of a round trip, as described in `RedisShard`."""
        if soonest_ms is not None:
            self.notify(None, soonest_ms)
        for change in changes:
            job_id, _, due_ms = change.partition(SEPARATOR)
            self.notify(job_id, int(due_ms) if due_ms else None)

    def on_message(self, message: str) -> None:
        """Notify of what another store object published: its name, the soonest due_ms, changes."""
        parts = message.split(SEPARATOR, 2)
        if len(parts) != 3 or parts[0] == self.name:
            return
        _, soonest_ms, changes = parts
        if _TIME.fullmatch(soonest_ms):
            self.notify(None, int(soonest_ms))
        for change in changes.split(KEY_SEPARATOR) if changes else ():
            self.notify(change.partition(SEPARATOR)[0], None)


class ChangeSubscription:
    """Subscribes to the channels of all shards, and logs when that fails and succeeds again.

    Pub/sub drops what is published while a connection is down. That costs promptness only, and not
    even that: after each connection `on_subscribed` looks at what is due. A stream would store what
    is of no use once the jobs themselves can be queried.
    """

    def __init__(
        self,
        server: RedisServer,
        tags: Sequence[str],
        *,
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], Awaitable[None]],
    ) -> None:
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._is_first_try_over = asyncio.Event()
        self._outage = OutageLog(
            _logger,
            "not subscribed to the changes of other processes, whose jobs are found by polling "
            "until it succeeds: %s",
            "subscribed again",
            actions=("jobs.redis.subscribe", "jobs.redis.subscribed"),
            level=logging.WARNING,
        )
        # At the server of the first: in a cluster, all servers have all messages.
        self._subscription = Subscription(
            server,
            tags[0],
            [f"{tag}changes" for tag in tags],
            on_message=self._handle,
            on_subscribed=self._note_subscribed,
            on_lost=self._note_lost,
            logger=_logger,
        )

    @property
    def is_subscribed(self) -> bool:
        """True while changes arrive."""
        return self._subscription.is_subscribed

    async def start(self, timeout: float) -> None:
        """Start; return once it is subscribed, has failed, or has tried for `timeout` seconds."""
        self._subscription.start()
        # It goes on trying: `is_subscribed` says when it has succeeded.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._is_first_try_over.wait()

    async def stop(self) -> None:
        """Unsubscribe."""
        await self._subscription.stop()

    async def _handle(self, channel: str, data: bytes) -> None:
        self._on_message(data.decode("utf-8", "replace"))

    async def _note_subscribed(self) -> None:
        await self._on_subscribed()
        self._outage.end()
        self._is_first_try_over.set()

    def _note_lost(self, error: Exception) -> None:
        self._is_first_try_over.set()
        self._outage.begin(error)
