"""Signals that several processes share, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from purgatory.signals.redis import RedisSignals
from purgatory.signals.shared_signals import EntryType, Epoch, LogEntry, SignalListener

EPOCH = "aaaaaaaaaaaa"
SHARDS = 4


class Logs(RedisSignals):
    """The copies alone: the test applies to them what a server would have sent."""

    listener: SignalListener

    def __init__(self) -> None:
        super().__init__("redis://unused", shards=SHARDS)
        self.told: list[tuple[str, str]] = []
        """What other processes were told, and are to be by the test: a question, its argument."""
        self.is_closed = False
        self.unread: list[str] = []
        """Keys of signals that the server has, and that were not read here yet."""

    def begin(self, listener: SignalListener) -> None:
        self.listener = listener
        for follower in self._followers:
            follower.replica.begin([Epoch(EPOCH, 0)], 0)
            follower.replica.is_loaded = True

    async def opened(self) -> None:
        """Nothing to wait for."""

    async def close(self) -> None:
        """Note it: there is nothing to close."""
        self.is_closed = True

    def tell(self, question: str, argument: str) -> None:
        """Note what other processes are told."""
        self.told.append((question, argument))

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
