"""A server of signals, jobs or leases: its client, nodes, settings, and where it has moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import BusyLoadingError, RedisClusterException, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from purgatory.background import cancel_until_done
from purgatory.errors import wrong_type
from purgatory.group_commit import CLOSE_S, RoundTripTimeout
from purgatory.log_text import redacted
from purgatory.redis_server.client import check_url_or_client, connected, is_cluster
from purgatory.redis_server.script import CONNECTION_ERRORS, Client, RedisScript, is_read_only
from purgatory.timer.clock import Seconds, seconds_of

# The first with all commands, and the replication of effects, that the steps need.
_OLDEST = (6, 2)
_MAX_TIMEOUT_S = 60
_NEARLY_FULL = 0.9
# So long, a primary that has lost its replicas goes on acknowledging.
_MAX_LAG_S = 2


@dataclass(slots=True)
class ServerSettings:
    """What is wrong with the settings: `faults` lose or refuse what is kept, `warnings` may."""

    kept: str
    """What is kept there, as the sentences say it."""
    fsync: str
    """The option that waits for the disk; empty if there is none."""
    is_fsynced: bool
    is_cluster_client: bool
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    has_slots: bool = False
    """Whether a server is a node of a cluster."""

    def judge(self, info: dict[str, str], config: dict[str, str]) -> None:
        """Add what is wrong, given the fields of INFO and, as far as is known, of CONFIG.

        Raises BusyLoadingError for a server that still reads its file: it has not all settings yet.
        """
        if info.get("loading", "0") != "0":
            # As for any other command. It says that it has no append-only file.
            raise BusyLoadingError("the server is loading the dataset in memory")
        self.has_slots |= info.get("cluster_enabled") == "1"
        self._judge_server(info)
        self._judge_memory(info)
        self._judge_persistence(info, config.get("appendfsync"))
        self._judge_replicas(info, config.get("min-replicas-max-lag"))
        # Several servers may say the same.
        self.faults = list(dict.fromkeys(self.faults))
        self.warnings = list(dict.fromkeys(self.warnings))

    def _judge_server(self, info: dict[str, str]) -> None:
        # Valkey also says with which Redis it is compatible.
        version = info.get("redis_version", "0")
        parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if parts < _OLDEST:
            self.faults.append(
                f"The server is Redis {version}: {self.kept} need Redis 6.2 or Valkey; upgrade it"
            )
        if info.get("role") == "slave":
            self.faults.append(
                "The server is a replica, which takes no writes: connect to its primary"
            )
        if self.has_slots and not self.is_cluster_client:
            self.warnings.append(
                "The server is a node of a cluster and the client knows that node only: give a "
                "URL that begins with redis+cluster://, or a RedisCluster of "
                "redis.asyncio.cluster, unless the node has all slots"
            )

    def _judge_memory(self, info: dict[str, str]) -> None:
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            self.faults.append(
                f"maxmemory-policy is {policy}, which evicts {self.kept} in silence when memory is "
                f"full: set it to noeviction, and give {self.kept} a server that is no cache"
            )
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if limit and used > _NEARLY_FULL * limit:
            self.warnings.append(
                f"The server uses {used} of {limit} bytes: when it is full, new {self.kept} are "
                "refused; raise maxmemory or keep less history"
            )

    def _judge_persistence(self, info: dict[str, str], append_fsync: str | None) -> None:
        is_logged = info.get("aof_enabled") == "1"
        if self.is_fsynced and not is_logged:
            self.faults.append(
                f"{self.fsync} waits for the append-only file, and appendonly is no: set it to yes"
            )
        elif not is_logged:
            self.warnings.append(
                f"appendonly is no: a crash of the server loses all {self.kept} since its last "
                "snapshot, if it makes any; set it to yes"
            )
        elif self.is_fsynced and append_fsync == "no":
            self.faults.append(
                f"{self.fsync} waits until the server writes to disk, and appendfsync is no: set "
                "it to everysec or always"
            )
        elif self.fsync and append_fsync in ("everysec", "no") and not self.is_fsynced:
            loss = "the last second" if append_fsync == "everysec" else "what is not on disk yet"
            self.warnings.append(
                f"appendfsync is {append_fsync}: a crash of the machine loses {loss}; set it to "
                f"always, or give {self.fsync}"
            )
        if info.get("aof_last_write_status", "ok") != "ok":
            self.faults.append(
                "The server cannot write its append-only file: see its log, and whether its disk "
                "is full"
            )

    def _judge_replicas(self, info: dict[str, str], max_lag: str | None) -> None:
        # INFO has this field only if writes wait for replicas at all.
        is_bounded = "min_slaves_good_slaves" in info and int(max_lag or 0) <= _MAX_LAG_S
        if int(info.get("connected_slaves", 0)) and not is_bounded:
            self.warnings.append(
                f"The server has replicas, and a failover loses all {self.kept} that the old "
                "primary acknowledges until it notices: set min-replicas-to-write to 1 and "
                f"min-replicas-max-lag to {_MAX_LAG_S} or less on each server"
            )


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
        prefix: str,
        timeout: Seconds,
        *,
        fsync: str = "",
        is_fsynced: bool = False,
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect to nothing yet; raise ValueError or TypeError for what cannot be used.

        `kept` is what is kept there under `prefix`, as sentences say it, and `fsync` the option
        that waits for the disk. `on_moved` is called when connections to the server of before have
        to end.
        """
        if not prefix or not prefix.isprintable() or "{" in prefix or "}" in prefix:
            raise ValueError(
                f"prefix is {prefix!r}: give a name without braces, which would be a hash tag, of "
                "printable characters"
            )
        seconds: object = seconds_of(timeout)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise wrong_type("timeout", seconds, "a number of seconds")
        if not 0 < seconds <= _MAX_TIMEOUT_S:
            raise ValueError(
                f"timeout is {seconds!r}: give seconds, above 0 and up to {_MAX_TIMEOUT_S}"
            )
        check_url_or_client(url_or_client, kept)
        self.is_cluster = is_cluster(url_or_client)
        if is_fsynced and self.is_cluster:
            raise ValueError(f"{fsync} needs one server: set appendfsync to always in a cluster")
        self.address = redacted(url_or_client) if isinstance(url_or_client, str) else "Redis"
        self.timeout = RoundTripTimeout(seconds)
        self.fsync_ms = round(seconds * 900) if is_fsynced else None
        """How long a script that writes waits for the disk; None if it does not wait."""
        self._fsync = fsync
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

    async def run(
        self,
        script: RedisScript,
        keys: Sequence[Any],
        arguments: Sequence[Any],
        *,
        fsync_ms: int | None = None,
    ) -> Any:
        """Return the reply to a script, as `RedisScript.run` does, within the timeout.

        Notes a server that is no longer the primary. Raises `CONNECTION_ERRORS`.
        """
        try:
            async with self.timeout.limit():
                return await script.run(self.client, keys, arguments, fsync_ms=fsync_ms)
        except ResponseError as exc:
            if is_read_only(exc):
                await self.note_moved()
            raise

    async def settings(self, keys: Sequence[str] = ()) -> ServerSettings:
        """Return what is wrong with the settings of the servers that have `keys`.

        Of all primaries without. Raises `CONNECTION_ERRORS`.
        """
        is_fsynced = self.fsync_ms is not None
        found = ServerSettings(self._kept, self._fsync, is_fsynced, self.is_cluster)
        for node in await self._primaries(keys):
            async with self.timeout.limit():
                info: Any = await node.info()
                config = await _config_of(node)
                found.judge({name: str(value) for name, value in info.items()}, config)
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
                    await self.note_moved(is_all=True)
            await asyncio.sleep(ASK_S)

    async def note_moved(self, *, is_all: bool = False) -> None:
        """Close the connections to a server that is no longer the primary.

        Its name may lead to another server by now, which open connections would never reach.
        `is_all`: end what is under way, too.
        """
        self._moves += 1
        self._on_moved()
        await self.drop_connections(is_all=is_all)

    async def drop_connections(self, *, is_all: bool = False) -> None:
        """Close connections that a server which was restarted no longer has: each would fail."""
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
