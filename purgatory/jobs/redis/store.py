"""A job store in Redis or Valkey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import MAX_REQUESTS
from purgatory.jobs.model.steps import Result, Step
from purgatory.jobs.redis.changes import ChangeListeners, ChangeSubscription
from purgatory.jobs.redis.record import step_of
from purgatory.jobs.redis.shards import RedisShard, RedisShards, no_reply_error
from purgatory.jobs.redis.steps import RedisSteps
from purgatory.jobs.stores.protocol import CloseOnce, StoreListener
from purgatory.redis_server.script import CONNECTION_ERRORS, Client
from purgatory.redis_server.server import RedisServer, ServerSettings
from purgatory.timer.clock import Seconds


class RedisJobStore(RedisSteps):
    """A `JobStore` in Redis 6.2 or Valkey.

    Every change is a step of one Lua script; the steps that are submitted while a round trip is
    under way share the next. Each shard has a hash tag of its own, so that any number
    of shards works in a cluster; with more than one, what names a job by its id alone asks all of
    them at once.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        prefix: str = "purgatory",
        shards: int = 1,
        *,
        limits: JobLimits | None = None,
        now_ms: Callable[[], int] | None = None,
        fsync: bool = False,
        timeout: Seconds = 10.0,
    ) -> None:
        """Keep jobs under `prefix`, on the server's clock unless `now_ms` is another.

        The URL may begin with `redis+cluster://`, of a node of a cluster, or be one of Sentinels:
        `redis+sentinel://user:password@host:26379,host:26379/service`. A client that is given is
        left open, and may be a RedisCluster. `shards` must be the same
        for all who share the jobs, for ever (`open` checks it); each takes its share of
        max_waiting. With `fsync`, nothing is acknowledged before it is on the server's disk
        (WAITAOF: Redis 7.2, Valkey). A round trip that takes longer than `timeout` seconds raises
        StoreUnavailableError. Raises ValueError for arguments that cannot work.
        """
        if isinstance(shards, bool) or not 1 <= shards <= 1_024:
            raise ValueError(f"shards is {shards!r}: give a number from 1 to 1024")
        self._now_ms = now_ms
        self._server = RedisServer(
            url_or_client, "jobs", prefix, timeout, fsync="fsync=True", is_fsynced=fsync
        )
        self._timeout = self._server.timeout
        listeners = ChangeListeners()
        parts = RedisShards(
            RedisShard(
                f"{{{prefix}:jobs:{number}}}:",
                settings=self._script_settings,
                server=self._server,
                on_reply=listeners.on_reply,
            )
            for number in range(shards)
        )
        super().__init__(parts, JobLimits() if limits is None else limits, listeners)
        self._subscription: ChangeSubscription | None = None
        self._closing = CloseOnce(self._close)

    async def open(self) -> None:
        """Connect; raise StoreNotReadyError for a server that loses jobs or cannot store them."""
        self._server.open()
        self._shards.open()
        try:
            settings = await self._settings()
            if settings.faults:
                raise StoreNotReadyError(". ".join(settings.faults))
            await self._begin_shards()
        except BaseException:
            # It may be cancelled because the process ends.
            self._timeout.hurry()
            await self._close()
            raise
        self._closing = CloseOnce(self._close)
        self._subscription = ChangeSubscription(
            self._server,
            [shard.tag for shard in self._shards.all],
            on_message=self._listeners.on_message,
            on_subscribed=self._notify_of_due,
        )
        await self._subscription.start(self._timeout.seconds)

    def hurry(self) -> None:
        """Leave half a second to round trips under way, as the process ends."""
        self._timeout.hurry()

    async def close(self) -> None:
        """Wait for the steps under way, then release every connection."""
        await self._closing.wait()

    async def _close(self) -> None:
        try:
            if self._subscription is not None:
                await self._subscription.stop()
                self._subscription = None
        finally:
            try:
                await self._shards.close()
            finally:
                await self._server.close()

    async def check(self) -> list[str]:
        """Return faults of the server's settings, a sentence each."""
        self._shards.require_open()
        settings = await self._settings()
        return settings.faults + settings.warnings

    @property
    def hears_others(self) -> bool:
        """True while the subscription holds."""
        return self._subscription is not None and self._subscription.is_subscribed

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of changes; return the function that ends it."""
        return self._listeners.subscribe(listener)

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps in order; return a result for each."""
        self._shards.require_open()
        # Most calls: each coroutine and each list counts.
        if len(steps) == 1:
            return await self._run(type(steps[0]), steps)
        results: list[Result] = []
        for kind, several in groupby(steps, type):
            results += await self._run(kind, list(several))
        return results

    def may_wait_on(self, key: str) -> bool:
        """Return True: another process may have put a job on any key since we looked."""
        return True

    def _script_settings(self, channel: str) -> bytes:
        limits = self.limits
        return step_of(
            channel,
            self._listeners.name,
            limits.horizon_ms,
            limits.max_waiting // len(self._shards.all),
            limits.past_tolerance_ms,
            limits.max_delay_ms,
            limits.max_batch,
            MAX_REQUESTS,
            max(1, limits.max_quarantined // len(self._shards.all)),
            limits.max_quarantined_length,
            None if self._now_ms is None else self._now_ms(),
        )

    async def _notify_of_due(self) -> None:
        due_ms = await self.next_due_ms()
        now_ms = await self.now_ms()
        if due_ms is not None and due_ms <= now_ms + self.limits.horizon_ms:
            self._listeners.notify(None, due_ms)

    async def _settings(self) -> ServerSettings:
        try:
            return await self._server.settings([shard.tag for shard in self._shards.all])
        except CONNECTION_ERRORS as exc:
            raise no_reply_error(exc, is_read=True) from exc

    async def _begin_shards(self) -> None:
        count = len(self._shards.all)
        for shards in await self._shards.ask_all(step_of("begin", count)):
            if int(shards) != count:
                # Some of its jobs would be nowhere, and never run.
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in {int(shards)} shards, and this store was "
                    f"given shards={count}: give shards={int(shards)}, or use another prefix"
                )
