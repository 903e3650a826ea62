"""Record batches (format 2): kept as the bytes that the producer sent, and bounded by offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from examples.kafka_broker.errors import ErrorCode

# Base offset, length of the rest, leader epoch, magic, CRC-32C of the rest, attributes, last offset
# delta, base and maximum timestamp, producer id, its epoch, base sequence, number of records.
HEADER: Final = Struct(">qiibIhiqqqhii")
# Base offset and leader epoch, which the broker sets, are not covered by the checksum.
_ASSIGNED: Final = Struct(">qii")
_CHECKED_FROM: Final = 21
_LENGTH_FROM: Final = 12
NO_PRODUCER: Final = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of records."""

    data: bytes
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def count(self) -> int:
        """The number of offsets that it takes."""
        return self.last_offset - self.base_offset + 1

    def assigned(self, base_offset: int, leader_epoch: int) -> Batch:
        """Return the batch as the leader appends it."""
        head = _ASSIGNED.pack(base_offset, len(self.data) - _LENGTH_FROM, leader_epoch)
        return Batch(
            head + self.data[_ASSIGNED.size :],
            base_offset,
            base_offset + self.last_offset - self.base_offset,
            leader_epoch,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
        )


def read_batches(data: bytes) -> Iterator[Batch]:
    """Yield the batches in `data`, unchecked; raise ValueError if the last one is cut off."""
    start = 0
    while start < len(data):
        if len(data) - start < HEADER.size:
            raise ValueError("a record batch is cut off")
        fields = HEADER.unpack_from(data, start)
        base_offset, length, epoch, magic, _, _, delta, _, timestamp, producer, *rest = fields
        end = start + _LENGTH_FROM + length
        if magic != 2 or delta < 0 or not HEADER.size <= end - start <= len(data) - start:
            raise ValueError("no record batch, or one that is cut off")
        whole = data if (start, end) == (0, len(data)) else data[start:end]
        yield Batch(
            whole, base_offset, base_offset + delta, epoch, timestamp, producer, rest[0], rest[1]
        )
        start = end


def check_batch(data: bytes | None) -> Batch | ErrorCode:
    """Return the one batch of a produce, or the error that Kafka responds with."""
    if not data:
        return ErrorCode.INVALID_RECORD
    if len(data) > 16 and data[16] != 2:
        return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    try:
        batches = list(read_batches(data))
    except ValueError:
        return ErrorCode.CORRUPT_MESSAGE
    batch, crc = batches[0], HEADER.unpack_from(data)[4]
    # A copy otherwise, of the whole batch.
    if crc != crc32c(memoryview(batch.data)[_CHECKED_FROM:]):
        return ErrorCode.CORRUPT_MESSAGE
    if len(batches) > 1 or HEADER.unpack_from(data)[-1] != batch.count:
        return ErrorCode.INVALID_RECORD
    return batch


class Log:
    """Batches with consecutive offsets, from `start_offset` up to but excluding `end_offset`."""

    # Invariant: each batch begins at the end of the one before, in offsets and in positions.
    __slots__ = ("_batches", "_positions", "end_offset", "size", "start_offset")

    def __init__(self, start_offset: int = 0) -> None:
        """Create an empty log."""
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.size = 0
        self._batches: list[Batch] = []
        # Where each batch ends, counted in bytes since the first one ever.
        self._positions: list[int] = []

    def append(self, batch: Batch) -> None:
        """Append a batch that begins at `end_offset`."""
        last = self._positions[-1] if self._positions else 0
        self._batches.append(batch)
        self._positions.append(last + len(batch.data))
        self.end_offset = batch.last_offset + 1
        self.size += len(batch.data)

    def bytes_from(self, offset: int, end_offset: int) -> int:
        """Return the size of the batches from that with `offset` to that before `end_offset`."""
        if not self.start_offset <= offset < end_offset:
            return 0
        first, last = self._index(offset), self._index(end_offset - 1)
        return self._positions[last] - self._positions[first] + len(self._batches[first].data)

    def read(self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Return whole batches, the first with `offset`, before `end_offset`, up to `max_bytes`.

        With `at_least_one`, the first batch is returned regardless of its size (KIP-74).
        """
        found: list[bytes] = []
        # By index: a slice would copy the rest of the log.
        for index in range(self._index(offset), len(self._batches)):
            batch = self._batches[index]
            if not offset <= batch.last_offset < end_offset:
                break
            max_bytes -= len(batch.data)
            if max_bytes < 0 and (found or not at_least_one):
                break
            found.append(batch.data)
        return b"".join(found)

    def holds(self, offset: int, leader_epoch: int) -> bool:
        """True iff the record appended at `offset` in that epoch was not truncated."""
        if offset < self.start_offset:
            return True
        is_there = offset < self.end_offset
        return is_there and self._batches[self._index(offset)].leader_epoch == leader_epoch

    def offset_at(self, timestamp: int, end_offset: int) -> tuple[int, int]:
        """Return offset and time of the first batch that is not older; (-1, -1) if there is none.

        The records in a batch are compressed together, so this is no more exact than a batch.
        """
        for batch in self._batches:
            if batch.last_offset < end_offset and batch.max_timestamp >= timestamp:
                return batch.base_offset, batch.max_timestamp
        return -1, -1

    def newest(self) -> tuple[int, int]:
        """Return offset and time of the batch with the latest time; (-1, -1) if there is none."""
        found = max(self._batches, key=lambda batch: batch.max_timestamp, default=None)
        return (-1, -1) if found is None else (found.last_offset, found.max_timestamp)

    def truncate(self, end_offset: int) -> None:
        """Delete the batches from `end_offset` on."""
        while self._batches and self._batches[-1].last_offset >= end_offset:
            self.size -= len(self._batches.pop().data)
            self._positions.pop()
        self.end_offset = min(self.end_offset, end_offset)

    def trim(self, limit_offset: int, max_bytes: int) -> None:
        """Delete the oldest batches before `limit_offset` until the log has `max_bytes`."""
        count = 0
        while self.size > max_bytes and self._batches[count].last_offset < limit_offset:
            self.size -= len(self._batches[count].data)
            self.start_offset = self._batches[count].last_offset + 1
            count += 1
        del self._batches[:count], self._positions[:count]

    def _index(self, offset: int) -> int:
        return max(0, bisect_right(self._batches, offset, key=_base_offset) - 1)


def _base_offset(batch: Batch) -> int:
    return batch.base_offset
