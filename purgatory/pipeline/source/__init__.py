"""The journal and the jobs as tables of Spark: `spark.read.format("purgatory")`."""

from purgatory.pipeline.source.data_source import PurgatoryDataSource, register

__all__ = ["PurgatoryDataSource", "register"]
