"""The Spark session that every job runs in."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.java import java_home
from purgatory.pipeline.spark.package_archive import write_archive

DEFAULT_MASTER = "local[2]"
DEFAULT_MEMORY = "1g"

REMOTE_VARIABLE = "SPARK_REMOTE"
"""The variable that Spark itself reads the address of a Spark Connect server from."""

_CONNECT_PORT = 15002
_CONNECT_TIMEOUT_S = 10
# Rows of a table of which each task has some.
_ROWS = 100_000

_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(
    name: str = "purgatory",
    *,
    master: str | None = None,
    memory: str = DEFAULT_MEMORY,
    options: dict[str, str] | None = None,
    is_short: bool = False,
) -> SparkSession:
    """Return the running session, or a new one.

    Under `spark-submit` (or in a notebook of a cluster) there is a JVM already: its master, memory
    and addresses stay as they are. Otherwise one is started here, on this machine unless `master`
    is another one, with `memory` as the heap of the driver; `options` are passed to Spark. With
    `is_short` Java compiles less and collects garbage in one thread, which takes less time for a
    few seconds of work, and more for minutes of it.

    With `master` sc://HOST:PORT (or SPARK_REMOTE) it is a session of a Spark Connect server: there
    is no Java here, and this package is sent to the server for the session.

    Raises NoJavaError if there is no suitable Java, PipelineError if the server is not there.
    """
    builder = SparkSession.builder.appName(name)
    # Times are UTC throughout, whatever the machine's zone.
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # All readers understand it; Spark's default is INT96, which has no zone.
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    remote = remote_address(master)
    if remote is not None:
        _check_listening(remote)
        builder = builder.remote(remote)
    elif not is_submitted():
        os.environ["JAVA_HOME"] = str(java_home())
        # The host name may not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers run the same Python: another one on the PATH may lack our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or DEFAULT_MASTER)
        for key, value in _local_options(memory, is_short).items():
            builder = builder.config(key, value)
    elif master is not None:
        builder = builder.master(master)
    for key, value in (options or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if remote is not None:
        with tempfile.TemporaryDirectory(prefix="purgatory-") as folder:
            session.addArtifacts(str(write_archive(Path(folder))), pyfile=True)
    return session


def remote_address(master: str | None) -> str | None:
    """Return the address of the Spark Connect server to use; None for a Spark of our own."""
    address = os.environ.get(REMOTE_VARIABLE) if master is None else master
    return address if address is not None and address.startswith("sc://") else None


def is_submitted() -> bool:
    """Return whether spark-submit has started this process, and a JVM for it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once, as far as it knows."""
    # By a job that counts its tasks: the SparkContext knows, but Spark Connect has none.
    tasks = spark.range(_ROWS).select(F.spark_partition_id().alias("task"))
    return int(tasks.agg(F.max("task")).collect()[0][0]) + 1


def _check_listening(address: str) -> None:
    # Spark itself tries for ten minutes.
    parts = urlsplit(address)
    try:
        place = (parts.hostname or "", parts.port or _CONNECT_PORT)
        socket.create_connection(place, timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"no Spark Connect server at {parts.scheme}://{parts.netloc}: {error}. "
            "Start it with sbin/start-connect-server.sh, or give the address of another"
        ) from error


def _local_options(memory: str, is_short: bool) -> dict[str, str]:
    java_options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"]
    if is_short:
        java_options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return {
        **_same_path(),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        # The default keeps a hidden checksum beside each file, and fails for names with a colon.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
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
