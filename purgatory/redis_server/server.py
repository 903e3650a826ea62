"""A server of signals, jobs or leases: its client, its nodes, and where it has moved to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, ResponseError

from purgatory.group_commit import CLOSE_S, RoundTripTimeout, cancel_until_done
from purgatory.log_text import redacted
from purgatory.redis_server.client import check_url_or_client, connected, is_cluster
from purgatory.redis_server.script import CONNECTION_ERRORS, Client
from purgatory.redis_server.server_settings import ServerSettings

# The Sentinels are asked so often: until then, the old primary acknowledges what is lost.
ASK_S: Final = 1.0


class RedisServer:
    """One server, a cluster, or the primary that Sentinels name; on one event loop.

    A client that is given is left open. What has noticed that the server is no longer the primary
    calls `note_moved`; `place` is then another, and subscriptions follow.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        kept: str,
        timeout: RoundTripTimeout,
        *,
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect to nothing yet; raise ValueError or TypeError for what cannot be used.

        `kept` is what is kept there, as sentences say it. `on_moved` is called when connections to
        the server of before have to end.
        """
        check_url_or_client(url_or_client, kept)
        self.is_cluster = is_cluster(url_or_client)
        self.address = redacted(url_or_client) if isinstance(url_or_client, str) else "Redis"
        self.timeout = timeout
        self._given = url_or_client
        self._kept = kept
        self._on_moved = on_moved
        self._client: Client | None = None
        # {(host, port): a client of that node of a cluster}
        self._nodes: dict[tuple[str, int], Redis] = {}
        self._moves = 0
        self._asking: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make the client, on the running event loop; it connects when it is used."""
        self.timeout.restart()
        client = self._given
        if isinstance(client, str):
            client = connected(client, self.timeout.seconds)
        self._client = client
        pool = getattr(client, "connection_pool", None)
        if isinstance(pool, SentinelConnectionPool) and pool.is_master:
            self._asking = asyncio.create_task(self._ask(pool), name="purgatory-sentinel")

    async def close(self) -> None:
        """Release the connections, but those of a client that was given."""
        asking, self._asking = self._asking, None
        await cancel_until_done(asking)
        client, self._client = self._client, None
        clients: list[Client] = [*self._nodes.values()]
        self._nodes.clear()
        if client is not None and isinstance(self._given, str):
            clients.append(client)
            pool = getattr(client, "connection_pool", None)
            if isinstance(pool, SentinelConnectionPool):
                clients += pool.sentinel_manager.sentinels
        for each in clients:
            # Of a server that hangs, nothing more comes.
            with contextlib.suppress(*CONNECTION_ERRORS):
                async with asyncio.timeout(CLOSE_S):
                    await each.aclose()

    @property
    def is_open(self) -> bool:
        """Return True iff there is a client."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """Return the client; only while it is open."""
        assert self._client is not None
        return self._client

    def channel(self, name: str) -> str:
        """Return the name of a channel for the database of the client.

        Channels, unlike keys, are those of the whole server: without the number, processes that use
        the same prefix in different databases would hear each other.
        """
        # A cluster has one database, and its client no pool.
        pool = getattr(self.client, "connection_pool", None)
        database = 0 if pool is None else int(pool.connection_kwargs.get("db") or 0)
        return f"{name}@{database}" if database else name

    def place(self, key: str) -> object:
        """Return what changes when another server has `key`, as far as is known here."""
        return self._moves, self._address_of(key)

    async def node(self, key: str, *, is_refreshed: bool = False) -> Redis:
        """Return the client of the server that has `key`; ask the cluster again if refreshed."""
        client = self.client
        if not isinstance(client, RedisCluster):
            return client
        _ = await client.initialize()
        if is_refreshed:
            # It learns of a new primary only by commands, which an idle process does not send.
            await client.nodes_manager.initialize()
        address = self._address_of(key)
        if address is None:
            raise RedisConnectionError(f"no node of the cluster has the slot of {key!r} now")
        return self._client_of(address)

    async def drop_connections(self) -> None:
        """Close connections that a server which was restarted no longer has: each would fail."""
        await self._disconnect(is_all=False)

    async def note_moved(self) -> None:
        """Close the connections to a server that is no longer the primary.

        Its name may lead to another server by now, which open connections would never reach.
        """
        await self._leave(is_all=False)

    async def settings(
        self, keys: Sequence[str] = (), *, is_fsynced: bool = False, fsync: str = "fsync=True"
    ) -> ServerSettings:
        """Return what is wrong with the settings of the servers that have `keys`.

        Of all primaries without. Raises `CONNECTION_ERRORS`.
        """
        found = ServerSettings()
        for node in await self._primaries(keys):
            async with self.timeout.limit():
                info: Any = await node.info()
                found.add(
                    ServerSettings.of(
                        {name: str(value) for name, value in info.items()},
                        await _config_of(node),
                        is_fsynced=is_fsynced,
                        is_cluster_client=self.is_cluster,
                        kept=self._kept,
                        fsync=fsync,
                    )
                )
        return found

    async def _ask(self, pool: SentinelConnectionPool) -> None:
        """Ask for the address of the primary, and leave the server that is it no longer.

        The one of before does not know it yet, and acknowledges what will be lost: commands under
        way there fail, as nobody can say whether they were done.
        """
        while True:
            with contextlib.suppress(*CONNECTION_ERRORS):
                async with self.timeout.limit():
                    address = await pool.get_master_address()  # type: ignore[no-untyped-call]  # redis-py leaves it so
                connections: list[Any] = [*pool._available_connections, *pool._in_use_connections]
                # Those that were made since have asked for themselves.
                if any(
                    each.is_connected and (each.host, each.port) != address for each in connections
                ):
                    await self._leave(is_all=True)
            await asyncio.sleep(ASK_S)

    async def _leave(self, *, is_all: bool) -> None:
        """Note that the primary is another; `is_all`: end what is under way, too."""
        self._moves += 1
        self._on_moved()
        await self._disconnect(is_all=is_all)

    async def _disconnect(self, *, is_all: bool) -> None:
        # A cluster's client does so by itself.
        if isinstance(self._client, Redis):
            # Of a machine that hangs, even the end of a connection may not come.
            with contextlib.suppress(*CONNECTION_ERRORS):
                async with self.timeout.limit():
                    await self._client.connection_pool.disconnect(inuse_connections=is_all)

    async def _primaries(self, keys: Sequence[str]) -> list[Redis]:
        client = self.client
        if not isinstance(client, RedisCluster):
            return [client]
        async with self.timeout.limit():
            if keys:
                return list(dict.fromkeys([await self.node(key) for key in keys]))
            _ = await client.initialize()
        return [self._client_of((node.host, int(node.port))) for node in client.get_primaries()]

    def _address_of(self, key: str) -> tuple[str, int] | None:
        if not isinstance(self._client, RedisCluster):
            return None
        try:
            node = self._client.get_node_from_key(key)
        except RedisClusterException:
            return None
        return None if node is None else (node.host, int(node.port))

    def _client_of(self, address: tuple[str, int]) -> Redis:
        if address not in self._nodes:
            assert isinstance(self._client, RedisCluster)
            known = signature(Redis.__init__).parameters
            # User, password, TLS, timeouts.
            options = {
                name: value
                for name, value in self._client.connection_kwargs.items()
                if name in known
            }
            self._nodes[address] = Redis(**{**options, "host": address[0], "port": address[1]})
        return self._nodes[address]


async def _config_of(node: Redis) -> dict[str, str]:
    """Return the settings that INFO does not show; none if CONFIG is forbidden, as if hosted."""
    config: dict[str, str] = {}
    # One call for several needs Redis 7.
    for name in ("appendfsync", "min-replicas-max-lag"):
        with contextlib.suppress(ResponseError):
            found = await node.config_get(name)
            config |= {str(key): str(value) for key, value in found.items()}
    return config
