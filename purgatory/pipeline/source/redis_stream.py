"""The readers and the writer of the journal in a Redis Stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from purgatory.journal.schema import EVENT_SCHEMA
from purgatory.json_value import decode_json
from purgatory.pipeline.errors import BadFileError
from purgatory.pipeline.source.rows import event_table

if TYPE_CHECKING:
    import redis

_ENTRIES = 2_000
_TIMEOUT_S = 30
_FIRST = "0-0"
_NUMBERS = frozenset(
    field.name
    for field in EVENT_SCHEMA
    if pa.types.is_timestamp(field.type) or pa.types.is_integer(field.type)
)


@dataclass
class Range(InputPartition):
    """The entries with ids in (after, until]."""

    after: str
    until: str


@dataclass
class _Stream:
    """A stream on a server. It connects for each call, as it is sent to other processes."""

    url: str
    name: str

    def last_id(self) -> str:
        with self._client() as client:
            entries: Any = client.xrevrange(self.name, count=1)
        return entries[0][0].decode() if entries else _FIRST

    def ranges(self, after: str, until: str, count: int) -> list[Range]:
        """Return about `count` ranges of equal time between two ids."""
        if _order(until) <= _order(after):
            return []
        low, high = max(_order(after)[0], self._first_ms()), _order(until)[0]
        edges = [low + (high - low) * number // count for number in range(1, count)]
        ids = [after, *(f"{edge}-0" for edge in dict.fromkeys(edges) if edge > low), until]
        return [Range(start, end) for start, end in pairwise(ids)]

    def read(self, entries: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # If there are no partitions, Spark asks for one that is None.
        if not isinstance(entries, Range):
            return
        after = entries.after
        with self._client() as client:
            while True:
                found: Any = client.xrange(self.name, f"({after}", entries.until, count=_ENTRIES)
                if not found:
                    return
                yield _batch(self.name, found, schema)
                after = found[-1][0].decode()

    def _first_ms(self) -> int:
        with self._client() as client:
            first: Any = client.xrange(self.name, count=1)
        return _order(first[0][0].decode())[0] if first else 0

    def _client(self) -> redis.Redis:
        import redis

        return redis.Redis.from_url(
            self.url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )


class RedisStreamReader(DataSourceReader):
    """Reads all entries that exist when it begins, several ranges in parallel."""

    def __init__(self, url: str, stream: str, schema: pa.Schema, tasks: int) -> None:
        self._stream = _Stream(url, stream)
        self._schema = schema
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of ids."""
        return self._stream.ranges(_FIRST, self._stream.last_id(), self._tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._stream.read(partition, self._schema)


class RedisStreamWriter(DataSourceArrowWriter):
    """Adds events to the stream. A repeated task adds its entries again."""

    def __init__(self, url: str, stream: str, max_length: int) -> None:
        self._url = url
        self._stream = stream
        self._max_length = max_length

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one task's events. Raises ValueError for a row that is not an event."""
        from purgatory.journal.redis_stream import RedisStream

        sink = RedisStream(
            self._url, stream=self._stream, max_length=self._max_length, timeout=_TIMEOUT_S
        )
        try:
            for batch in iterator:
                for part in event_table(batch).to_batches():
                    sink.write(part)
        finally:
            sink.close()
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: the entries are visible already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: added entries stay, and repeated ones are recognised by `outcomes`."""


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def _batch(stream: str, entries: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for entry_id, fields in entries:
        try:
            for name, values in columns.items():
                values.append(_value(name, fields.get(name.encode())))
        except ValueError as error:
            raise BadFileError(
                f"entry {entry_id.decode()} of stream {stream!r} is not an event ({error}): delete "
                "it (XDEL) and let only the journal write to the stream"
            ) from error
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type)
        if field.name in _NUMBERS
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(name: str, value: bytes | None) -> Any:
    if value is None:
        return None
    if name == "keys":
        keys = decode_json(value)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ValueError(f"its keys are {value[:64]!r}")
        return keys
    if name == "labels":
        labels = decode_json(value)
        if not isinstance(labels, dict) or not all(isinstance(of, str) for of in labels.values()):
            raise ValueError(f"its labels are {value[:64]!r}")
        return list(labels.items())
    if name not in _NUMBERS:
        return value.decode()
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError(f"its {name} is out of bounds")
    return number
