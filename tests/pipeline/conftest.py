"""A Spark session, a journal with everything in it, and what an independent computation finds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import OutcomeTable, spark_session
from purgatory.pipeline.source import register
from purgatory.pipeline.spark.session import REMOTE_VARIABLE
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.free_port import free_port
from tests.nightly import NIGHTLY, by_night
from tests.pipeline.spark_servers import (
    CLIENT_VARIABLES,
    CONNECT_PORT,
    PLACE,
    SESSION_OPTIONS,
    connect_server,
    standalone_cluster,
)
from tests.pipeline.synthetic import Written, write
from tests.scheduling import scope_of
from tests.valkey_server import ValkeyServer

# Ten million by hand: PURGATORY_PIPELINE_OPERATIONS=10000000 make test ARGS=tests/pipeline
OPERATIONS = int(os.environ.get("PURGATORY_PIPELINE_OPERATIONS", "60000"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores; one of it, since scheduling.py keeps the tests that use it together."""
    test = os.environ["PYTEST_CURRENT_TEST"]
    assert scope_of(test) == "tests/pipeline", f"{test} is not in TOGETHER of tests/scheduling.py"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as servers:
        patch.setenv("SPARK_SUBMIT_OPTS", SESSION_OPTIONS)
        master = None
        # Generated code costs more than it saves for a few rows; by night it is what runs.
        options = {
            "spark.sql.codegen.factoryMode": by_night("FALLBACK", "NO_CODEGEN"),
            "spark.sql.codegen.wholeStage": by_night("true", "false"),
            "spark.sql.shuffle.partitions": "2",
        }
        if PLACE == "connect":
            master = servers.enter_context(connect_server(tmp_path_factory.mktemp("connect")))
            # Commands that the tests run find the same server.
            patch.setenv(REMOTE_VARIABLE, master)
        elif PLACE == "cluster":
            master = servers.enter_context(standalone_cluster(tmp_path_factory.mktemp("cluster")))
        else:
            # In the same process: another one would cost as much as all queries of its tests.
            options["spark.plugins"] = "org.apache.spark.sql.connect.SparkConnectPlugin"
            options["spark.connect.grpc.binding.address"] = "127.0.0.1"
            options[CONNECT_PORT] = str(free_port())
        session = spark_session("tests", master=master, options=options)
        register(session)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def connect_address(spark: SparkSession) -> str:
    """The address of the server of Spark Connect that is beside the session."""
    return f"sc://127.0.0.1:{spark.conf.get(CONNECT_PORT)}"


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """For all tests: each has a prefix, or streams, of its own."""
    with tempfile.TemporaryDirectory() as directory, ValkeyServer(Path(directory)) as server:
        yield server


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the server of the shared session: the test starts a Spark of its own, or none."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Repeats, disorder, dropped records, a crash and a restart; nothing late, nothing broken."""
    folder = tmp_path_factory.mktemp("journal") / "a folder with spaces"
    return write(
        folder,
        operations=OPERATIONS,
        duplicate_share=0.03,
        dropped_share=0.02,
        shuffled=True,
        crashes=(1.3,),
        drains=(2.1,),
        rows_per_file=max(30_000, OPERATIONS // 10),
    )


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=NIGHTLY)])
def empty_table(request: pytest.FixtureRequest, tmp_path: Path) -> OutcomeTable:
    """A table to be: the rules are DuckDB's SQL, which Spark runs translated."""
    engine: Any = DuckRunner(connected(threads=2))
    if request.param == "spark":
        engine = request.getfixturevalue("spark")
    return OutcomeTable(engine, f"{tmp_path}/outcomes")


@pytest.fixture(scope="session")
def table(journal: Written, tmp_path_factory: pytest.TempPathFactory) -> OutcomeTable:
    """The outcomes of that journal; tests do not write to it."""
    runner = DuckRunner(connected(threads=2))
    found = OutcomeTable(runner, str(tmp_path_factory.mktemp("out") / "outcomes"))
    found.update(str(journal.folder))
    return found


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """Another engine, which shares nothing with Spark but the files."""
    connection = duckdb.connect(config={"threads": "2"})
    yield connection
    connection.close()


@pytest.fixture
def duck_outcomes(
    duck: duckdb.DuckDBPyConnection, table: OutcomeTable
) -> duckdb.DuckDBPyConnection:
    """The same with the table of outcomes as the view `outcomes`."""
    files = Path(table.folder.uri.removeprefix("file:")) / "date=*/hour=*/*.parquet"
    duck.execute(f"CREATE VIEW outcomes AS SELECT * FROM read_parquet('{files}')")
    return duck
