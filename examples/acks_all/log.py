"""The records of one partition, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """A record: a value at an offset."""

    offset: int
    leader_epoch: int
    """The epoch of the leader that appended it."""
    value: str
    size: int
    """Bytes of UTF-8."""
    position: int
    """The bytes appended before it: the size of a range is a difference."""


class Log:
    """Records with consecutive offsets, from `start_offset` up to but excluding `end_offset`."""

    # Invariant: all(r.offset == start_offset + i for i, r in enumerate(_records))
    __slots__ = ("_end_position", "_records", "end_offset", "start_offset")

    def __init__(self) -> None:
        """Create an empty log that starts at offset 0."""
        self.start_offset: int = 0
        self.end_offset: int = 0
        self._end_position: int = 0
        self._records: list[Record] = []

    @property
    def size(self) -> int:
        """The size of the log in bytes."""
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
        """Return the size of the records from `offset` up to but excluding `end_offset`."""
        return self._position(end_offset) - self._position(offset)

    def read(
        self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> list[Record]:
        """Return records from `offset` up to but excluding `end_offset`, at most `max_bytes`.

        With `at_least_one`, the first record is returned regardless of its size.
        """
        records: list[Record] = []
        # By index: a slice would copy the rest of the log.
        for index in range(offset - self.start_offset, end_offset - self.start_offset):
            record = self._records[index]
            max_bytes -= record.size
            if max_bytes < 0 and (records or not at_least_one):
                break
            records.append(record)
        return records

    def holds(self, offset: int, leader_epoch: int) -> bool:
        """True iff the record appended at `offset` in that epoch was not truncated."""
        if offset < self.start_offset:
            return True
        return (
            offset < self.end_offset
            and self._records[offset - self.start_offset].leader_epoch == leader_epoch
        )

    def truncate(self, end_offset: int) -> None:
        """Delete the records from `end_offset` on."""
        self._end_position = self._position(end_offset)
        self.end_offset = end_offset
        del self._records[end_offset - self.start_offset :]

    def trim(self, limit_offset: int, *, max_bytes: int, max_records: int) -> None:
        """Delete the oldest records before `limit_offset` until the log is within its limits."""
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
