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


class RedisStreamReader(DataSourceReader):
    """Reads all entries that exist when it begins, several ranges in parallel.

    It connects for each call, as it is sent to other processes.
    """

    def __init__(self, url: str, stream: str, schema: pa.Schema, tasks: int) -> None:
        self._url = url
        self._stream = stream
        self._schema = schema
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of ids of about equal intervals of time."""
        with self._client() as client:
            last: Any = client.xrevrange(self._stream, count=1)
            first: Any = client.xrange(self._stream, count=1)
        if not last:
            return []
        until = last[0][0].decode()
        # All may have been deleted in between.
        low, high = (int(found[0][0].partition(b"-")[0]) for found in (first or last, last))
        edges = [low + (high - low) * number // self._tasks for number in range(1, self._tasks)]
        ids = [_FIRST, *(f"{edge}-0" for edge in dict.fromkeys(edges) if edge > low), until]
        return [Range(start, end) for start, end in pairwise(ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        # If there are no partitions, Spark asks for one that is None.
        if not isinstance(partition, Range):
            return
        after, until = partition.after, partition.until
        with self._client() as client:
            while True:
                found: Any = client.xrange(self._stream, f"({after}", until, count=_ENTRIES)
                if not found:
                    return
                yield _batch(self._stream, found, self._schema)
                after = found[-1][0].decode()

    def _client(self) -> redis.Redis:
        import redis

        return redis.Redis.from_url(
            self._url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )


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
