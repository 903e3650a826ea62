"""Spark and DuckDB compute the same tables, to the last digit, and continue each other's work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.advise import advice
from purgatory.pipeline.advise.targets import Targets
from purgatory.pipeline.advise.workers import Capacity
from purgatory.pipeline.cli.run import Run
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.folders import Tables
from purgatory.pipeline.sql.duck import connected, parquet
from purgatory.pipeline.wait_columns import JOB
from tests.pipeline.synthetic import Written, write

TABLES = (
    *("by_kind", "by_key_prefix", "by_hour", "hot_keys", "parked", "timeline"),
    *("wait_counts", "lateness_counts"),
)


@pytest.fixture(scope="module")
def engine() -> duckdb.DuckDBPyConnection:
    return connected(threads=2)


@pytest.fixture(scope="module")
def both(
    spark: SparkSession, engine: duckdb.DuckDBPyConnection, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The results of Spark and of DuckDB on a journal with every fault, read in two runs.

    Each engine continues what the other one began.
    """
    out = tmp_path_factory.mktemp("engines")
    options: dict[str, Any] = {"operations": 20_000, "shuffled": True, "duplicate_share": 0.03}
    faults = {"dropped_share": 0.02, "crashes": (1.3,), "drains": (2.1,), "late_share": 0.03}
    written: Written = write(out / "a journal", **options, **faults)
    first, second = out / "spark", out / "duckdb"
    journal = str(written.folder)
    Run(str(first), engine, journal=journal).update()
    Run(str(second), spark, journal=journal).update()
    written.journal.deliver_late()
    updates = [
        Run(str(first), spark, journal=journal).update(),
        Run(str(second), engine, journal=journal).update(),
    ]
    assert updates[0] == updates[1]
    assert updates[0].operations == written.truth.operations
    with pytest.MonkeyPatch.context() as patch:
        # On one machine they would be DuckDB's.
        patch.setattr("purgatory.pipeline.cli.run.is_for_one_process", lambda *_: False)
        Run(str(first), spark).write_waits()
    Run(str(second), engine).write_waits()
    return first, second


def files(folder: Path) -> str:
    return parquet(map(str, sorted(folder.rglob("*.parquet"))))


def test_outcomes_are_the_same(both: tuple[Path, Path], duck: duckdb.DuckDBPyConnection) -> None:
    """Every column of every row, and the manifest."""
    one, two = (f"SELECT * FROM {files(out / 'outcomes')}" for out in both)
    found = duck.execute(
        f"(({one}) EXCEPT ALL ({two})) UNION ALL (({two}) EXCEPT ALL ({one})) LIMIT 5"
    ).fetchall()
    assert found == []
    manifests = [Run(str(out), duck).outcomes.manifest() for out in both]
    for manifest in manifests:
        manifest.hours = {
            name: (hour.operations, hour.open, hour.first_open_deadline)  # type: ignore[misc] # without the run
            for name, hour in manifest.hours.items()
        }
        manifest.replaced = [path.partition("/")[2] for path in manifest.replaced]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_waits_are_the_same(both: tuple[Path, Path], name: str) -> None:
    """Names, types as Python has them, and values."""
    rows = [Tables(str(out)).rows(JOB, name) for out in both]
    first = [sorted(found, key=repr) for found in rows]
    assert len(first[0]) > 1
    assert first[0] == first[1]
    assert [*first[0][0]] == [*first[1][0]]
    kinds = [[type(value) for value in found[0].values()] for found in first]
    assert kinds[0] == kinds[1]


def test_the_advice_is_the_same(
    both: tuple[Path, Path], spark: SparkSession, engine: duckdb.DuckDBPyConnection
) -> None:
    """From tables that are the same."""
    found = [
        advice.run(run.manifest, run.tables, Targets(), Capacity()).as_json()
        for run in (Run(str(both[0]), spark), Run(str(both[1]), engine))
    ]
    assert found[0] == found[1]


@pytest.mark.usefixtures("no_server")
def test_the_command_takes_duckdb_for_a_local_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report without Spark: nothing asks for a session."""
    monkeypatch.setattr("purgatory.pipeline.__main__.spark_session", None)
    written = write(tmp_path / "journal", operations=3_000, hours=1.0)
    arguments = ["report", "--journal", str(written.folder), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert f"{written.truth.operations:,} operations in {tmp_path}/out/outcomes" in said
    assert (tmp_path / "out" / "report" / "report.html").exists()
    assert main(["outcomes", *arguments[1:], "--engine", "duckdb"]) == 0


@pytest.mark.usefixtures("no_server")
def test_auto_counts_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that is too large for DuckDB is not, once it was read; and Spark starts lightly."""
    journal = write(tmp_path / "journal", operations=300, hours=1.0).folder
    size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
    arguments = ["waits", "--journal", str(journal), "--out", str(tmp_path / "out")]
    is_short = []

    def session(*_: object, **options: object) -> None:
        is_short.append(options["is_short"])
        raise PipelineError("asked for Spark")

    monkeypatch.setattr("purgatory.pipeline.__main__.spark_session", session)
    monkeypatch.setattr("purgatory.pipeline.cli.run.machine_memory", lambda: 20 * size - 1)
    monkeypatch.setattr("purgatory.pipeline.cli.run._SHORT_BYTES", size)
    assert main(arguments) == 1
    assert "asked for Spark" in capsys.readouterr().err
    assert main([*arguments, "--engine", "duckdb"]) == 0
    assert main(arguments) == 0
    assert main([*arguments, "--engine", "spark"]) == 1
    assert is_short == [False, True]
    shutil.rmtree(tmp_path / "out" / "rollups")
    assert main([*arguments, "--engine", "spark"]) == 1
    monkeypatch.setattr("purgatory.pipeline.cli.run._SHORT_BYTES", 1)
    assert main([*arguments, "--engine", "spark"]) == 1
    assert main(["outcomes", *arguments[1:], "--engine", "spark"]) == 1
    assert is_short[3:] == [False, True]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--journal", "ftp://logs/history"], 'ftp://logs/history has the scheme "ftp"'),
        (["--journal", "/x", "--master", "local[2]"], "--master is for Spark"),
    ],
)
def test_what_duckdb_cannot_do_is_said_at_once(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    """With what to give instead."""
    with pytest.raises(SystemExit) as caught:
        main(["waits", "--out", "/nowhere", "--engine", "duckdb", *options])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
