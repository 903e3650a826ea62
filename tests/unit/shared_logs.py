"""Signals that several processes share, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from purgatory.event_loop.parked_operations import LogListener
from purgatory.redis_server.server import RedisServer
from purgatory.signals.model import EntryType, Epoch, LogEntry
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.peers import Peers

EPOCH = "aaaaaaaaaaaa"
SHARDS = 4


class Told(Peers):
    """Notes what other processes are told, and are to be by the test."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__("purgatory", server)
        self.told: list[tuple[str, str]] = []
        """A question, its argument."""

    def tell(self, question: str, argument: str) -> None:
        """Note it."""
        self.told.append((question, argument))


class Logs(RedisSignals):
    """The copies alone: the test applies to them what a server would have sent."""

    listener: LogListener

    def __init__(self) -> None:
        super().__init__("redis://unused", shards=SHARDS)
        self.peers: Told = Told(self._server)
        self.is_closed = False
        self.unread: list[str] = []
        """Keys of signals that the server has, and that were not read here yet."""

    def begin(self, listener: LogListener) -> None:
        self.listener = listener
        for follower in self._followers:
            follower.replica.begin([Epoch(EPOCH, 0)], 0)
            follower.replica.is_loaded = True

    async def opened(self) -> None:
        """Nothing to wait for."""

    async def close(self) -> None:
        """Note it: there is nothing to close."""
        self.is_closed = True

    def fire(self, key: str) -> int | asyncio.Future[int]:
        """Apply a signal on `key`, whose value is its offset; return how many waits it ended."""
        replica = self._replica(key)
        offset = replica.applied + 1
        replica.apply(LogEntry(offset, EntryType.FIRED, offset, 0, 0, key, b"%d" % offset))
        return self.listener.check(key)

    async def read_to_end(self, keys: Sequence[str]) -> None:
        """Apply what was not read yet."""
        unread, self.unread = self.unread, []
        for key in unread:
            self.fire(key)

    def forget_load(self, key: str) -> None:
        """Be as before the log of `key` was read."""
        self._replica(key).is_loaded = False

    def lose(self, key: str, *, is_checked: bool = True) -> None:
        """Have the log lose signals of `key`."""
        replica = self._replica(key)
        replica.apply(LogEntry(replica.applied + 1, EntryType.LOST, 0, 0, 0, key, b""))
        if is_checked:
            self.listener.check(key)

    def drop(self, key: str) -> None:
        """Drop `key`."""
        self._replica(key).apply(LogEntry(1, EntryType.DROPPED, 1, 0, 0, key, b""))
        self.listener.cancel(key)

    def _replica(self, key: str):  # type: ignore[no-untyped-def] # a private class
        return self._followers[self.shard_of(key)].replica
