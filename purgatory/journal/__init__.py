"""The history of operations, as Parquet files."""

from purgatory.journal.schema import EVENT_SCHEMA, SCHEMA_VERSION

__all__ = ["EVENT_SCHEMA", "SCHEMA_VERSION"]
