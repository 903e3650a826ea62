"""Clients of a server: the checks of what a user gives, and a client of our own."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, UnixDomainSocketConnection
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from purgatory.log_text import CLUSTER, SENTINEL, invalid_redis_url, redacted
from purgatory.redis_server.script import Client

_DATABASE = re.compile("/*[0-9]*/*")
_SENTINEL_PORT: Final = 26_379
# So long, what the other Sentinels say is waited for.
_SENTINELS_S: Final = 0.5


def check_url_or_client(given: str | Client, kept: str) -> None:
    """Raise ValueError for an invalid URL, or replies that would be text: `kept` are bytes.

    Raises TypeError for what is neither a URL nor a client of redis.asyncio.
    """
    if not isinstance(given, str):
        if not isinstance(given, Client):
            # A URL of another type may have a password.
            raise TypeError(
                f"url_or_client is {redacted(repr(given))} of {type(given)}: give a URL, such as "
                '"redis://localhost:6379", or a Redis or RedisCluster of redis.asyncio'
            )
        if given.get_encoder().decode_responses:
            raise ValueError(f"the client has decode_responses=True: {kept} are bytes, turn it off")
        return
    if _has_suffix(given, SENTINEL):
        url = _Watched.of(given).url
    else:
        url = given.replace(CLUSTER, "", 1) if _has_suffix(given, CLUSTER) else given
    try:
        options = parse_url(url)
        parts = urlsplit(url)
    except ValueError:
        raise invalid_redis_url(given) from None
    # redis-py takes another path than a number for database 0.
    if parts.scheme != "unix" and not _DATABASE.fullmatch(unquote(parts.path)):
        if "@" in parts.path:
            # It begins within the user or the password.
            raise invalid_redis_url(given)
        raise invalid_redis_url(given, "has a path that is no number of a database")
    if "decode_responses" in options:
        raise ValueError(
            f"the URL {redacted(given)!r} has decode_responses: {kept} are bytes, take it out"
        )


def is_cluster(given: str | Client) -> bool:
    """Return True iff a URL or a client is that of a cluster."""
    return (
        _has_suffix(given, CLUSTER) if isinstance(given, str) else isinstance(given, RedisCluster)
    )


def connected(url: str, timeout_s: float) -> Client:
    """Return a client that connects and replies within `timeout_s`, and repeats nothing.

    The caller decides whether to try again: a repeated call may have another result. A cluster is
    named by one of its nodes, and a primary by the Sentinels that watch it.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if _has_suffix(url, CLUSTER):
        return RedisCluster.from_url(url.replace(CLUSTER, "", 1), **options)
    if _has_suffix(url, SENTINEL):
        return _Watched.of(url).client(options)
    client = Redis.from_url(url, **options)
    if client.connection_pool.connection_class is UnixDomainSocketConnection:
        client.connection_pool.connection_class = _UnixConnection
    return client


def _has_suffix(url: str, suffix: str) -> bool:
    return url.partition(":")[0] in (f"redis{suffix}", f"rediss{suffix}")


class _Watched(NamedTuple):
    """A primary that Sentinels watch: `redis+sentinel://user:password@host,host:port/service`."""

    sentinels: list[tuple[str, int]]
    service: str
    url: str
    """The URL of a server with the same user, password and query, at the first Sentinel."""

    @classmethod
    def of(cls, given: str) -> _Watched:
        """Raise ValueError for a URL without hosts, or without a service."""
        scheme, _, rest = given.partition("://")
        rest, mark, query = rest.partition("?")
        user, at, rest = rest.rpartition("@")
        hosts, _, service = rest.partition("/")
        sentinels = []
        for host in hosts.split(","):
            try:
                parts = urlsplit(f"//{host}")
                port = parts.port
            except ValueError:
                raise invalid_redis_url(given) from None
            if not parts.hostname:
                raise invalid_redis_url(given, "has a Sentinel without a host")
            sentinels.append((parts.hostname, port or _SENTINEL_PORT))
        service = unquote(service.rstrip("/"))
        if not service or "/" in service:
            raise invalid_redis_url(
                given, "has no name of a service that the Sentinels know, such as /mymaster"
            )
        first = hosts.partition(",")[0]
        return cls(
            sentinels, service, f"{scheme.replace(SENTINEL, '')}://{user}{at}{first}{mark}{query}"
        )

    def client(self, options: dict[str, Any]) -> Redis:
        """Return a client that asks the Sentinels for the primary at each new connection."""
        options = {**parse_url(self.url), **options}
        for name in ("host", "port"):
            options.pop(name, None)
        options["ssl"] = options.pop("connection_class", None) is not None
        # The same TLS and timeouts; a user of the servers is none of the Sentinels.
        asking = {
            name: options[name] for name in options if name.startswith(("ssl", "socket_", "retry"))
        }
        for name in ("username", "password"):
            asking[name] = options.pop(f"sentinel_{name}", None)
        client: Redis = _Sentinels(self.sentinels, sentinel_kwargs=asking, **options).master_for(  # type: ignore[no-untyped-call]  # redis-py leaves it so
            self.service
        )
        return client


class _Sentinels(Sentinel):
    """Sentinels that are asked all at once: those that know of no failover yet are outvoted."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the primary; raise MasterNotFoundError."""
        asked: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(each.sentinel_masters()) for each in self.sentinels
        ]
        try:
            # A machine that is gone has often both, a Sentinel and the primary of before.
            _, pending = await asyncio.wait(asked, timeout=_SENTINELS_S)
            if len(pending) == len(asked):
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            replies = [each for each in asked if each.done()]
            errors = [error for each in replies if (error := each.exception()) is not None]
            found = [each.result().get(service_name) for each in replies if not each.exception()]
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        states = [each for each in found if each and self.check_master_state(each, service_name)]
        if not states:
            reason = "; ".join(map(str, errors)) or "ask them: SENTINEL MASTERS"
            raise MasterNotFoundError(
                f"no Sentinel knows a primary of {service_name!r} that is up ({reason})"
            ) from (errors[0] if errors else None)
        # Each failover has a higher one.
        latest = max(states, key=lambda state: int(state["config-epoch"]))
        return latest["ip"], latest["port"]


class _UnixConnection(UnixDomainSocketConnection):
    """A connection that is closed if the server refuses its database.

    redis-py keeps it open up to version 7, and the next command uses database 0.
    """

    async def connect(self) -> None:
        try:
            await super().connect()  # type: ignore[no-untyped-call]  # redis-py leaves it so
        except BaseException:
            await self.disconnect(nowait=True)
            raise
