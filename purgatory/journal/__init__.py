"""The history of operations, as Parquet files: what waited, for what, for how long.

    journal = Journal(ParquetFiles("history"))
    purgatory = Purgatory(listeners=[journal])

`docs/journal.md` has the columns and what is promised. `purgatory.journal.redis_stream` is another
sink, with a vendor of its own.
"""

try:
    import pyarrow as pa  # noqa: F401 - for the error
except ImportError as exc:
    raise ImportError(
        "purgatory.journal needs pyarrow: pip install 'fastapi-purgatory[journal]'"
    ) from exc

from purgatory.journal.event_rows import KeyRule
from purgatory.journal.hashed_keys import HashedKeys
from purgatory.journal.journal import Journal
from purgatory.journal.key_prefixes import KeyPrefixes
from purgatory.journal.parquet_files import ParquetFiles
from purgatory.journal.schema import EVENT_SCHEMA, EVENTS, SCHEMA_VERSION, VERSION_KEY
from purgatory.journal.sink import Sink
from purgatory.journal.statistics import JournalStatistics, SinkStatistics
from purgatory.retry_policy import RetryPolicy

__all__ = [
    "EVENTS",
    "EVENT_SCHEMA",
    "SCHEMA_VERSION",
    "VERSION_KEY",
    "HashedKeys",
    "Journal",
    "JournalStatistics",
    "KeyPrefixes",
    "KeyRule",
    "ParquetFiles",
    "RetryPolicy",
    "Sink",
    "SinkStatistics",
]
