"""The copies of several logs of signals, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from purgatory.errors import BadCursorError, CursorExpiredError
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.memory import MemorySignals
from purgatory.signals.protocol import SignalStatistics
from purgatory.signals.signal import Signal
from purgatory.timer import Clock


class ShardedSignals(MemorySignals):
    """Asks the copy that has a key. It holds no signals itself.

    A position names its log, so positions of different keys can be compared only if they are of one
    log. A cursor of keys in several logs has a part for each, with "." in between.
    """

    def __init__(
        self, clock: Clock, replicas: Sequence[LogReplica], shard_of: Callable[[str], int]
    ) -> None:
        """Ask `replicas`; `shard_of` returns the number of a key's."""
        super().__init__(clock=clock)
        self.share()
        self.replicas = tuple(replicas)
        self._shard_of = shard_of

    def parts(self) -> list[MemorySignals]:
        """Return the copies, one for each log."""
        return list(self.replicas)

    def part_number(self, key: str) -> int:
        """Return the number of the log of `key`."""
        return self._shard_of(key)

    def part(self, keys: Iterable[str]) -> MemorySignals:
        """Return the copy that has all of `keys`; this object if there is none."""
        shards = {self._shard_of(key) for key in keys}
        return self.replicas[shards.pop()] if len(shards) == 1 else self

    def of(self, key: str) -> LogReplica:
        """Return the copy that has `key`."""
        return self.replicas[self._shard_of(key)]

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; raise InvalidValueError if it is not JSON or too large."""
        return self.replicas[0].encode(value)

    def value(self, signal: Signal) -> Any:
        """Return the JSON value of `signal`."""
        return self.of(signal.key).value(signal)

    def head(self) -> int:
        """Return a number that increases with each signal of any log: no position of a key."""
        return sum(replica.head() for replica in self.replicas)

    def head_of(self, key: str) -> int:
        """Return the position of a reader of `key` that has read everything."""
        return self.of(key).head()

    def cursor_of(self, keys: Iterable[str]) -> str:
        """Return the cursor of a reader of `keys` that has read everything."""
        shards = sorted({self._shard_of(key) for key in keys})
        return self._joined(self.replicas[shard].head() for shard in shards)

    def mark(self) -> tuple[int, ...]:
        """Return where each log is now, for `since_mark`."""
        return tuple(replica.head() for replica in self.replicas)

    def since_mark(self, mark: Any, keys: tuple[str, ...]) -> tuple[int, ...]:
        """Return the positions after which to wait for what has fired since `mark`."""
        return tuple(mark[self._shard_of(key)] for key in keys)

    def cursor_after(
        self, keys: tuple[str, ...], positions: tuple[int, ...], key: str | None, position: int
    ) -> str:
        """Return the cursor for the next wait: a part for each log that has some of `keys`.

        Only the log of the signal that ended the wait was read on.
        """
        parts: dict[int, int] = {}
        fired = None if key is None else self._shard_of(key)
        for each, begun in zip(keys, positions, strict=True):
            shard = self._shard_of(each)
            if fired is not None:
                read = position if shard == fired else begun
            else:
                first = self.first_after(each, begun)
                read = max(begun, self.replicas[shard].head()) if first is None else begun
            parts[shard] = min(parts.get(shard, read), read)
        return self._joined(parts[shard] for shard in sorted(parts))

    def loss(self, keys: tuple[str, ...], positions: tuple[int, ...]) -> CursorExpiredError | None:
        """Return the error of a wait that may have missed signals of a key."""
        for key, position in zip(keys, positions, strict=True):
            error = self.of(key).loss((key,), (position,))
            if error is not None:
                return error
        return None

    def _joined(self, positions: Iterable[int]) -> str:
        return ".".join(map(self.cursor, positions))

    def position(self, key: str, cursor: str) -> int:
        """Return the position of `cursor`, or of its part for the log of `key`."""
        replica = self.of(key)
        # As in the others: what is no string is refused there.
        if type(cursor) is not str or cursor == "0":
            return replica.position(key, cursor)
        names = {epoch.name for epoch in replica.epochs}
        others = {
            epoch.name for other in self.replicas if other is not replica for epoch in other.epochs
        }
        parts = cursor.split(".", len(self.replicas))
        for part in parts:
            if part.partition("-")[0] in names:
                return replica.position(key, part)
        own = [part for part in parts if part.partition("-")[0] not in others]
        if not own:
            raise BadCursorError(
                f"cursor {cursor[:64]!r} is of other keys than {key!r}: use the cursor that was "
                "given for this key"
            )
        return replica.position(key, own[0])

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        return self.replicas[position % len(self.replicas)].cursor(position)

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `key` has `count` signals after `position`, or one that was trimmed."""
        return self.of(key).has_after(key, position, count)

    def read(self, key: str, position: int, limit: int) -> list[Signal]:
        """Return up to `limit` signals of `key` after `position`, the oldest first."""
        return self.of(key).read(key, position, limit)

    def first_after(self, key: str, position: int) -> Signal | None:
        """Return the oldest retained signal of `key` after `position`, or None."""
        return self.of(key).first_after(key, position)

    def earliest(self, key: str) -> int:
        """Return the position just before the earliest retained signal of `key`."""
        return self.of(key).earliest(key)

    def last(self, key: str) -> int:
        """Return the offset of the last signal or drop of `key`; 0 if there is neither."""
        return self.of(key).last(key)

    def statistics(self) -> SignalStatistics:
        """Return the number and size of the retained signals."""
        each = [replica.statistics() for replica in self.replicas]
        return SignalStatistics(
            signals=sum(one.signals for one in each),
            bytes=sum(one.bytes for one in each),
            keys=sum(one.keys for one in each),
        )
