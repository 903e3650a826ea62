"""The Spark session that every job runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline.spark.java import java_home

DEFAULT_MASTER = "local[2]"
DEFAULT_MEMORY = "1g"

_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(
    name: str = "purgatory",
    *,
    master: str | None = None,
    memory: str = DEFAULT_MEMORY,
    options: dict[str, str] | None = None,
) -> SparkSession:
    """Return the running session, or a new one.

    Under `spark-submit` (or in a notebook of a cluster) there is a JVM already: its master, memory
    and addresses stay as they are. Otherwise one is started here, on this machine unless `master`
    is another one, with `memory` as the heap of the driver; `options` are passed to Spark.

    Raises NoJavaError if there is no suitable Java.
    """
    builder = SparkSession.builder.appName(name)
    # Times are UTC throughout, whatever the machine's zone.
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # All readers understand it; Spark's default is INT96, which has no zone.
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    if not _is_submitted():
        os.environ["JAVA_HOME"] = str(java_home())
        # The host name may not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers run the same Python: another one on the PATH may lack our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or DEFAULT_MASTER)
        for key, value in _local_options(memory).items():
            builder = builder.config(key, value)
    elif master is not None:
        builder = builder.master(master)
    for key, value in (options or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_submitted() -> bool:
    # spark-submit sets it for the Python process that it starts.
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _local_options(memory: str) -> dict[str, str]:
    return {
        **_same_path(),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        # Few cores: 200 partitions would be 200 small tasks. Adaptive execution merges them.
        "spark.sql.shuffle.partitions": "16",
        # A task has one or two hours of rows, which need not be sorted by hour to be written.
        "spark.sql.maxConcurrentOutputFileWriters": "3",
    }


def _same_path() -> dict[str, str]:
    # A worker is started by `python -m`, which searches the current folder first. If this process
    # does not (`python -P`), the workers could run another purgatory: the sources of a checkout
    # rather than the compiled package on PYTHONPATH.
    return {"spark.executorEnv.PYTHONSAFEPATH": "1"} if sys.flags.safe_path else {}
