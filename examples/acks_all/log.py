"""The records of one partition, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """A value at its offset."""

    offset: int
    leader_epoch: int
    """The epoch of the leader that appended it."""
    value: str
    size: int
    """Bytes of UTF-8."""
    position: int
    """Bytes that were appended before it, so that a range is measured by a subtraction."""


class Log:
    """Records with consecutive offsets, from `start_offset` up to but without `end_offset`."""

    # Invariant: all(r.offset == start_offset + i for i, r in enumerate(_records))
    __slots__ = ("_end_position", "_records", "end_offset", "start_offset")

    def __init__(self) -> None:
        """Make an empty log that begins at offset 0."""
        self.start_offset: int = 0
        self.end_offset: int = 0
        self._end_position: int = 0
        self._records: list[Record] = []

    @property
    def size(self) -> int:
        """Bytes in the log."""
        return self.bytes_between(self.start_offset, self.end_offset)

    def append(self, values: Iterable[str], leader_epoch: int) -> int:
        """Append `values`; return the offset of the first."""
        base_offset = self.end_offset
        for value in values:
            size = len(value.encode())
            record = Record(self.end_offset, leader_epoch, value, size, self._end_position)
            self._records.append(record)
            self.end_offset += 1
            self._end_position += size
        return base_offset

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Return the size of the records from `offset` up to but without `end_offset`."""
        return self._position(end_offset) - self._position(offset)

    def read(
        self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> list[Record]:
        """Return records from `offset` on, up to `max_bytes`, without `end_offset`.

        With `at_least_one` the first is returned however large, so that a reader gets on.
        """
        records: list[Record] = []
        # By index: a slice would copy the whole rest of the log.
        for index in range(offset - self.start_offset, end_offset - self.start_offset):
            record = self._records[index]
            max_bytes -= record.size
            if max_bytes < 0 and (records or not at_least_one):
                break
            records.append(record)
        return records

    def holds(self, offset: int, leader_epoch: int) -> bool:
        """True iff the record that was appended there, in that epoch, was not truncated since."""
        if offset < self.start_offset:
            return True
        return (
            offset < self.end_offset
            and self._records[offset - self.start_offset].leader_epoch == leader_epoch
        )

    def truncate(self, end_offset: int) -> None:
        """Drop the records from `end_offset` on."""
        self._end_position = self._position(end_offset)
        self.end_offset = end_offset
        del self._records[end_offset - self.start_offset :]

    def trim(self, limit_offset: int, *, max_bytes: int, max_records: int) -> None:
        """Drop the oldest records, none from `limit_offset` on, until the rest is within bounds."""
        start_offset = self.start_offset
        while start_offset < limit_offset and (
            self.bytes_between(start_offset, self.end_offset) > max_bytes
            or self.end_offset - start_offset > max_records
        ):
            start_offset += 1
        del self._records[: start_offset - self.start_offset]
        self.start_offset = start_offset

    def _position(self, offset: int) -> int:
        if offset == self.end_offset:
            return self._end_position
        return self._records[offset - self.start_offset].position
