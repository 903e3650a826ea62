"""A sink that writes a Redis Stream."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from purgatory.journal.schema import EVENT_SCHEMA, SCHEMA_VERSION
from purgatory.journal.sink import Sink
from purgatory.log_text import invalid_redis_url
from purgatory.timer.clock import Clock, Seconds, seconds_of

try:
    import redis
except ImportError as exc:
    raise ImportError(
        "the journal's Redis Stream needs redis: pip install 'fastapi-purgatory[redis]'"
    ) from exc

# Entries of one round trip.
_PIPELINE: Final = 500
_TIMES: Final = frozenset(
    column.name for column in EVENT_SCHEMA if pa.types.is_timestamp(column.type)
)

Entry = dict[Any, Any]


class RedisStream(Sink):
    """Adds an entry for each row to a Redis Stream that keeps about the last `max_length` of them.

    The fields of an entry are the columns that are not null: times as microseconds since 1970,
    `keys` and `labels` as JSON, and `schema`. After a broken connection some entries are added
    twice; they have the same `operation_id` and `event`.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str = "purgatory:journal",
        max_length: int = 1_000_000,
        timeout: Seconds = 5.0,
    ) -> None:
        """Write to the server at `url`, waiting up to `timeout` seconds for each reply.

        Raises ValueError for an invalid URL and for a length below 1.
        """
        if max_length < 1:
            raise ValueError(f"max_length is {max_length}: give 1 or more")
        self.stream = stream
        self.max_length = max_length
        self._client = _client(url, seconds_of(timeout))
        address = urlsplit(url)
        # Without user and password.
        self._name = f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"
        # Entries that the server has not acknowledged.
        self._entries: deque[Entry] = deque()

    @property
    def name(self) -> str:
        """The server and the stream."""
        return f"{self._name} {self.stream}"

    def open(self, writer: str, clock: Clock) -> None:
        """Do nothing: the server may become available later."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send `batch`."""
        self._entries.extend(_entries(batch))
        self.roll()

    def roll(self) -> None:
        """Send all entries that are left."""
        while self._entries:
            self._send([self._entries[n] for n in range(min(_PIPELINE, len(self._entries)))])

    def abandon(self) -> int:
        """Disconnect and lose nothing: the entries are sent again on a new connection."""
        self._client.close()
        return 0

    def close(self) -> int:
        """Disconnect; return how many entries were not sent and are lost."""
        self._client.close()
        lost = len(self._entries)
        self._entries.clear()
        return lost

    def _send(self, entries: list[Entry]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for entry in entries:
            pipeline.xadd(self.stream, entry, maxlen=self.max_length, approximate=True)
        # Raises for the first that was rejected: then all are sent again.
        pipeline.execute()
        for _ in entries:
            self._entries.popleft()
        self.written += len(entries)
        self.bytes += sum(len(str(value)) for entry in entries for value in entry.values())


def _client(url: str, timeout: float) -> redis.Redis:
    try:
        return redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout)
    except ValueError:
        raise invalid_redis_url(url) from None


def _entries(batch: pa.RecordBatch) -> list[Entry]:
    columns = {
        column.name: batch.column(column.name).cast(pa.int64())
        if column.name in _TIMES
        else batch.column(column.name)
        for column in EVENT_SCHEMA
    }
    rows = pa.table(columns).to_pylist()
    return [_entry(row) for row in rows]


def _entry(row: dict[str, Any]) -> Entry:
    entry = {name: value for name, value in row.items() if value is not None}
    entry["keys"] = json.dumps(entry["keys"])
    if "labels" in entry:
        entry["labels"] = json.dumps(dict(entry["labels"]))
    entry["schema"] = SCHEMA_VERSION
    return entry
