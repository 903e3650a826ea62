"""Clients of a server: the checks of what a user gives, and a client of our own."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, UnixDomainSocketConnection
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from purgatory.redacted_url import invalid_redis_url, redacted
from purgatory.redis_server.script import Client

_DATABASE = re.compile("/*[0-9]*/*")


def check_url_or_client(given: str | Client, kept: str, *, suffix: str = "") -> None:
    """Raise ValueError for an invalid URL, or replies that would be text: `kept` are bytes.

    Raises TypeError for what is neither a URL nor a client of redis.asyncio. The scheme of a URL
    may have `suffix` at its end, which redis-py does not know.
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
    url = given.replace(suffix, "", 1)
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


def connected(url: str, timeout_s: float) -> Redis:
    """Return a client that connects and replies within `timeout_s`, and repeats nothing.

    The caller decides whether to try again: a repeated call may have another result.
    """
    client = Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    if client.connection_pool.connection_class is UnixDomainSocketConnection:
        client.connection_pool.connection_class = _UnixConnection
    return client


def connected_to_cluster(url: str, timeout_s: float) -> RedisCluster:
    """Return such a client of the cluster that the node at `url` belongs to."""
    return RedisCluster.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def channel_of_database(channel: str, client: Client) -> str:
    """Return the name of a channel for the database that `client` uses.

    Channels, unlike keys, are those of the whole server: without the number, processes that use
    the same prefix in different databases would hear each other.
    """
    # A cluster has one database, and its client no pool.
    pool = getattr(client, "connection_pool", None)
    database = 0 if pool is None else int(pool.connection_kwargs.get("db") or 0)
    return f"{channel}@{database}" if database else channel


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
