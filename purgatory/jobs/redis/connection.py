"""The connection of a store: the client, and whether its server can store jobs."""

from __future__ import annotations

import asyncio
import contextlib

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ResponseError

from purgatory.group_commit import CLOSE_S, RoundTripTimeout
from purgatory.jobs.model.errors import StoreNotReadyError
from purgatory.jobs.redis.errors import no_reply_error
from purgatory.jobs.redis.record import BUCKET_WIDTH_MS, SEPARATOR
from purgatory.jobs.redis.shards import RedisShards
from purgatory.jobs.redis.step_codec import step_of
from purgatory.redis_server.client import check_url_or_client, connected
from purgatory.redis_server.script import CONNECTION_ERRORS, Client
from purgatory.redis_server.server_settings import ServerSettings, parse_info


class RedisConnection:
    """Connects the shards of a store; a client that is given is left open."""

    def __init__(
        self,
        url_or_client: str | Client,
        shards: RedisShards,
        *,
        timeout: RoundTripTimeout,
        is_fsynced: bool,
    ) -> None:
        """Connect to nothing yet; raise ValueError for a URL or client that cannot be used."""
        check_url_or_client(url_or_client, "records")
        if is_fsynced and isinstance(url_or_client, RedisCluster):
            raise ValueError("fsync=True needs one server: set appendfsync to always in a cluster")
        self._given = url_or_client
        self._shards = shards
        self._timeout = timeout
        self._is_fsynced = is_fsynced
        self._client: Client | None = None

    async def open(self) -> Client:
        """Return the client, connected; raise StoreNotReadyError for a server that loses jobs."""
        self._timeout.restart()
        client = self._connect()
        try:
            settings = await self.judge()
            if settings.faults:
                raise StoreNotReadyError(". ".join(settings.faults))
            await self._begin_shards()
        except BaseException:
            # It may be cancelled because the process ends.
            self._timeout.hurry()
            await self.close()
            raise
        return client

    async def close(self) -> None:
        """Wait for the round trips under way, then close a client of ours."""
        try:
            await self._shards.close()
        finally:
            client, self._client = self._client, None
            if client is not None and isinstance(self._given, str):
                with contextlib.suppress(*CONNECTION_ERRORS):
                    async with asyncio.timeout(CLOSE_S):
                        await client.aclose()

    async def judge(self) -> ServerSettings:
        """Return faults of the server's settings."""
        append_fsync = await self._append_fsync()
        found = ServerSettings()
        for info in await self._shards.ask_all(step_of("info")):
            settings = ServerSettings.of(
                parse_info(info.decode("utf-8", "replace")),
                append_fsync=append_fsync,
                is_fsynced=self._is_fsynced,
                is_cluster_client=isinstance(self._client, RedisCluster),
            )
            found.faults += settings.faults
            found.warnings += settings.warnings
        # Several shards of one server say the same.
        return ServerSettings(_unique(found.faults), _unique(found.warnings))

    def _connect(self) -> Client:
        client = self._given
        if isinstance(client, str):
            client = connected(client, self._timeout.seconds)
        self._client = client
        self._shards.connect(client)
        return client

    async def _append_fsync(self) -> str | None:
        assert self._client is not None
        try:
            async with self._timeout.limit():
                setting = await self._client.config_get("appendfsync")
        except ResponseError:
            # Hosted servers may forbid CONFIG.
            return None
        except CONNECTION_ERRORS as exc:
            raise no_reply_error(exc, is_read=True) from exc
        return next((str(value) for value in setting.values()), None)

    async def _begin_shards(self) -> None:
        count = len(self._shards.all)
        for begun in await self._shards.ask_all(step_of("begin", count)):
            width_ms, shards = begun.decode().split(SEPARATOR)
            if int(width_ms) != BUCKET_WIDTH_MS:
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in buckets of {width_ms} ms, and this version's "
                    f"have {BUCKET_WIDTH_MS} ms: use another prefix, or the version that made them"
                )
            if int(shards) != count:
                # Some of its jobs would be nowhere, and never run.
                raise StoreNotReadyError(
                    f"the jobs of this prefix are in {shards} shards, and this store was given "
                    f"shards={count}: give shards={shards}, or use another prefix"
                )


def _unique(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
