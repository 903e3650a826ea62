"""Options of Spark that hold for a while, also where something fails meanwhile."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.spark.session import session_option

NAME = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


def test_an_option_of_spark_is_as_it_was_after_a_failure(spark: SparkSession) -> None:
    """What the user has set holds again."""
    before = spark.conf.get(NAME)

    def fail() -> None:
        with session_option(spark, NAME, "1m"):
            assert spark.conf.get(NAME) == "1m"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert spark.conf.get(NAME) == before != "1m"
