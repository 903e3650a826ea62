"""The journal and the jobs as tables of Spark: `spark.read.format("purgatory")`.

Only sources and sinks of Spark, and `job_events`; what is computed from the tables is elsewhere.
"""

from purgatory.pipeline.source.data_source import PurgatoryDataSource, register

__all__ = ["PurgatoryDataSource", "register"]
