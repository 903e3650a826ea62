"""Options of a session that hold for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def session_option(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set an option of Spark SQL until the end of a `with`, for the plans that are run in it."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
