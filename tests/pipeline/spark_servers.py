"""Spark on loopback: a server of Spark Connect, and a cluster of two workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from purgatory.pipeline.spark.session import REMOTE_VARIABLE, java_home
from tests.free_port import free_port
from tests.patience import PATIENCE_S

SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = str(SPARK_HOME / "bin" / "spark-submit")
_CLASS = str(SPARK_HOME / "bin" / "spark-class")
_DEPLOY = "org.apache.spark.deploy"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=4 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For each Java process: many small queries, so compile less, collect in one thread, and do not
verify Spark's classes, which takes two seconds."""

SESSION_OPTIONS = f"{JAVA_OPTIONS} -Xms512m -Xmn300m"
"""For that of the session: its heap at once, since to collect while it grows takes a fifth more."""

CLIENT_VARIABLES = (REMOTE_VARIABLE, "SPARK_CONNECT_MODE_ENABLED")
"""What a client of Spark Connect has in its environment; PySpark itself sets the second."""

CONNECT_PORT = "spark.connect.grpc.binding.port"

PLACE = os.environ.get("PURGATORY_SPARK", "local")
"""Where the tests that share a session run it: make test-spark PLACE=connect, or cluster."""
assert PLACE in ("local", "connect", "cluster"), PLACE


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process of Spark, which is no client of another."""
    inherited = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
    return {
        **inherited,
        "JAVA_HOME": str(java_home()),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **(more or {}),
    }


@contextmanager
def connect_server(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve Spark Connect on two cores; yield its address. `more` is added to the environment."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        CONNECT_PORT: str(port),
        "spark.driver.host": "127.0.0.1",
        # As docs/pipeline/clusters.md says.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    options = [part for item in settings.items() for part in ("--conf", "=".join(item))]
    # What sbin/start-connect-server.sh runs.
    command = [SUBMIT, "--master", "local[2]", *options]
    arguments = [*command, "--class", _CONNECT, "spark-internal"]
    with _running(arguments, folder / "connect.log", environment(more), port):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def standalone_cluster(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a master and two workers of one core each; yield the address of the master."""
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    # Its executors have the environment of a worker.
    variables = environment(
        {
            "SPARK_WORKER_CORES": "1",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_WORKER_MEMORY": "1g",
            **(more or {}),
        }
    )
    with ExitStack() as running:

        def run(role: str, log: str, port: int, *arguments: str) -> None:
            command = [_CLASS, f"{_DEPLOY}.{role}", *place, "--port", str(port), *arguments]
            running.enter_context(_running(command, folder / log, variables, port))

        run("master.Master", "master.log", port)
        for number in range(2):
            run("worker.Worker", f"worker-{number}.log", free_port(), address)
        yield address


@contextmanager
def _running(
    command: list[str], log: Path, variables: Mapping[str, str], port: int
) -> Iterator[None]:
    """Run a process that is ready when it listens on `port`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _is_open(port):
            text = log.read_text(errors="replace")[-3_000:]
            assert process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
