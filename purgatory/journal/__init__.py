"""The history of operations and jobs, as Parquet files or a Redis Stream.

    journal = Journal(ParquetFiles("history"))
    purgatory = Purgatory(listeners=[journal])

`docs/reference/journal.md` has the columns and the guarantees. Here belong rows, sinks and their
threads; what is computed from them is in `purgatory.pipeline`. `purgatory.journal.redis_stream` is
imported by itself, as it needs another package.
"""

try:
    import pyarrow as pa  # noqa: F401 - for the error
except ImportError as exc:
    raise ImportError(
        "purgatory.journal needs pyarrow: pip install 'fastapi-purgatory[journal]'"
    ) from exc

from purgatory.journal.event_rows import HashedKeys, KeyPrefixes, KeyRule
from purgatory.journal.journal import Journal
from purgatory.journal.labels import CLIENT, WAIT_ID, Label
from purgatory.journal.parquet_files import ParquetFiles
from purgatory.journal.schema import EVENT_SCHEMA, EVENTS, SCHEMA_VERSION, VERSION_KEY
from purgatory.journal.sink import JournalStatistics, Sink, SinkStatistics
from purgatory.retry_policy import RetryPolicy

__all__ = [
    "CLIENT",
    "EVENTS",
    "EVENT_SCHEMA",
    "SCHEMA_VERSION",
    "VERSION_KEY",
    "WAIT_ID",
    "HashedKeys",
    "Journal",
    "JournalStatistics",
    "KeyPrefixes",
    "KeyRule",
    "Label",
    "ParquetFiles",
    "RetryPolicy",
    "Sink",
    "SinkStatistics",
]
