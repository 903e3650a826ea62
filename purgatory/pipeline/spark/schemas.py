"""The columns of events and outcomes, as types of Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from purgatory.pipeline import schemas


def spark_schema(schema: pa.Schema) -> StructType:
    """Return columns of Arrow as those of Spark."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


EVENT_SCHEMA: Final = spark_schema(schemas.EVENT_SCHEMA)
"""One row for each event of an operation, as `purgatory.journal` writes it."""
