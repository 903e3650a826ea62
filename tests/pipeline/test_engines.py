"""Spark and DuckDB compute the same tables, to the last digit, and continue each other's work."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.advise import advice
from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.advise.workers import Capacity
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.rollups.rollup_files import Part
from purgatory.pipeline.rollups.wait_tables import JOB
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import connected, parquet
from tests.pipeline.synthetic import TABLES, Written, outcomes, write
from tests.pipeline.test_bad_files import damage
from tests.pipeline.test_everywhere import AHEAD
from tests.pipeline.test_impossible_times import PLANTED
from tests.synthetic_journal import START, inject, put


@pytest.fixture(scope="module")
def engine() -> duckdb.DuckDBPyConnection:
    return connected(threads=2)


def job(number: int, event: str, state: str, error: str | None = None) -> dict[str, Any]:
    """Return the end of a job, each a second later."""
    at = START + timedelta(seconds=number)
    return {
        "operation_id": f"job:{number}",
        "event": event,
        "seq": 0,
        "kind": "job:pay",
        "keys": [f"order:{number}"],
        "worker": "w",
        "at": at,
        "watched_at": START,
        "deadline": at,
        "completed_at": at,
        "lateness_us": 1_000 if event == "expired" else None,
        "handler": "pay",
        "state": state,
        "error": error,
    }


JOBS = [
    *(job(1, "fired", "cancelled"), job(2, "expired", "failed", "first"), job(3, "fired", "done")),
    *(job(4, "expired", "failed", "last"), job(5, "expired", "failed"), job(6, "expired", "done")),
    *(job(7, "expired", "cancelled", "once"), job(8, "cancelled", "cancelled")),
]


def poll(number: int, kind: str) -> dict[str, Any]:
    """Return the end of a poll of one of two waits, the fourth of them in the next hour."""
    at = START + timedelta(seconds=3_510 + number * 30)
    return {
        "operation_id": f"{kind}-{number}",
        "event": "expired" if number < 4 else "fired",
        "seq": number + 1,
        "kind": kind,
        "keys": ["order:1"],
        "worker": "w",
        "at": at + timedelta(seconds=25),
        "watched_at": at,
        "deadline": at + timedelta(seconds=25),
        "completed_at": at + timedelta(seconds=25),
        "labels": [("wait", str(number % 2))],
    }


POLLS = [poll(number, kind) for kind in ("watch", "long-poll") for number in range(6)]


@pytest.fixture(scope="module")
def both(
    spark: SparkSession, engine: duckdb.DuckDBPyConnection, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Run]:
    """The results of Spark and of DuckDB on a journal with every fault, read in two runs.

    Each engine continues what the other one began.
    """
    out = tmp_path_factory.mktemp("engines")
    options: dict[str, Any] = {"operations": 6_000, "shuffled": True, "duplicate_share": 0.03}
    options["tenants"] = 3
    faults = {"dropped_share": 0.02, "crashes": (1.3,), "drains": (2.1,), "late_share": 0.03}
    written: Written = write(out / "a journal", **options, **faults)
    planted_rows = {"impossible": PLANTED, "ahead": [AHEAD], "jobs": JOBS, "polls": POLLS}
    for name, rows in planted_rows.items():
        put(written.folder / f"{name}.parquet", *rows)
    damage(written.folder)
    inject(written.folder, "truncated")
    journal = str(written.folder)
    of_spark, of_duckdb = (
        Run(f"{out}/{name}", session, journal=journal)
        for name, session in (("spark", spark), ("duckdb", engine))
    )
    with pytest.MonkeyPatch.context() as patch:
        # As for a large journal: by several tasks, which exchange rows.
        patch.setattr("purgatory.pipeline.sql.spark.FEW_RECORDS", 1_000)
        Run(of_duckdb.out, spark, journal=journal).update()
        Run(of_spark.out, engine, journal=journal).update()
        written.journal.deliver_late()
        patch.undo()
        # On one machine the rollups would be DuckDB's.
        patch.setattr("purgatory.pipeline.run.is_for_one_process", lambda *_: False)
        patch.setattr("purgatory.pipeline.sql.rollups.KEPT_KEYS", 100)
        patch.setattr("purgatory.pipeline.sql.rollups.KEPT_PREFIXES", 2)
        updates = [run.update() for run in (of_spark, of_duckdb)]
        assert updates[0] == updates[1]
        assert len(updates[0].bad) == 2
        planted = len(PLANTED) // 2
        assert (updates[0].manifest.unknown_rows, len(updates[0].future)) == (planted, 1)
        assert updates[0].operations == written.truth.operations + planted + len(JOBS) + len(POLLS)
        of_spark.write_waits()
        of_duckdb.write_waits()
    return of_spark, of_duckdb


def test_outcomes_are_the_same_on_spark(both: tuple[Run, Run]) -> None:
    """Every column of every row, and the manifest."""
    first, second = (outcomes(run.outcomes.folder) for run in both)
    assert first == second
    manifests = [run.outcomes.manifest() for run in both]
    for manifest in manifests:
        manifest.hours = {
            name: (hour.operations, hour.open, hour.first_open_deadline, hour.polls)  # type: ignore[misc] # without the run
            for name, hour in manifest.hours.items()
        }
        manifest.replaced = sorted({path.rpartition("/")[0] for path in manifest.replaced})
        manifest.future_run = None
    assert manifests[0] == manifests[1]


def test_rollups_are_the_same_on_spark(both: tuple[Run, Run]) -> None:
    """Of random keys and prefixes both keep the same, as many as there is room for."""
    columns = "hour, part, kind, name, outcome, number, count, contested, valued, total, least"
    found = []
    for run in both:
        files = parquet(map(str, sorted(Path(run.out, "rollups").rglob("*/hours/*/*.parquet"))))
        found.append(duckdb.execute(f"SELECT {columns}, most FROM {files} ORDER BY ALL").fetchall())
    assert found[0] == found[1]
    for part, most in ((Part.KEY, 100), (Part.PREFIX_WAIT, 2 + 1)):
        hours = Counter(hour for hour, name in {row[::3][:2] for row in found[0] if row[1] == part})
        assert max(hours.values()) == most


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_waits_are_the_same_on_spark(both: tuple[Run, Run], name: str) -> None:
    """Names, types as Python has them, and values."""
    rows = [run.tables.rows(JOB, name) for run in both]
    first = [sorted(found, key=repr) for found in rows]
    assert len(first[0]) > 1
    assert first[0] == first[1]
    assert [*first[0][0]] == [*first[1][0]]
    kinds = [[type(value) for value in found[0].values()] for found in first]
    assert kinds[0] == kinds[1]


def test_failed_and_cancelled_jobs_are_the_same_on_spark(both: tuple[Run, Run]) -> None:
    """Whatever ended their waits, with the latest error that is known."""
    for run in both:
        assert run.failed_jobs() == [{"kind": "job:pay", "jobs": 3, "error": "last"}]
        (row,) = [each for each in run.tables.rows(JOB, "by_kind") if each["kind"] == "job:pay"]
        counts = {name: row[name] for name in ("fired", "expired", "cancelled")}
        assert counts == {"fired": 1, "expired": 4, "cancelled": 3}


def test_the_advice_is_the_same_on_spark(both: tuple[Run, Run]) -> None:
    """From tables that are the same."""
    first, second = (
        advice.run(run.manifest, run.tables, Targets(), Capacity()).as_json() for run in both
    )
    assert first == second


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
    monkeypatch.setattr("purgatory.pipeline.run.machine_memory", lambda: 20 * size - 1)
    monkeypatch.setattr("purgatory.pipeline.run._SHORT_BYTES", size)
    assert main(arguments) == 1
    assert "asked for Spark" in capsys.readouterr().err
    assert main([*arguments, "--engine", "duckdb"]) == 0
    assert main(arguments) == 0
    assert main([*arguments, "--engine", "spark"]) == 1
    assert is_short == [False, True]
    shutil.rmtree(tmp_path / "out" / "rollups")
    assert main([*arguments, "--engine", "spark"]) == 1
    monkeypatch.setattr("purgatory.pipeline.run._SHORT_BYTES", 1)
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
