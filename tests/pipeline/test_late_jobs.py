"""Ends of jobs cost what is new, however many hours these were deferred in."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.rollups.rollups import FOLDER
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import connected
from tests.pipeline.rolled import waits
from tests.pipeline.synthetic import TABLES, outcomes
from tests.synthetic_journal import START, SyntheticJournal, put

HOURS = 4


def write_jobs(journal: Path, number: int) -> None:
    """Write the ends of a job of each hour, ten hours later, and one of them twice."""
    ended = START + timedelta(hours=10, minutes=number)
    rows: list[dict[str, Any]] = [
        {
            "operation_id": f"job:{number}-{hour}",
            "event": "expired",
            "seq": 0,
            "kind": "job:pay",
            "keys": [f"order:{number}"],
            "worker": "w",
            "at": ended,
            "watched_at": START + timedelta(hours=hour, minutes=30),
            "deadline": ended,
            "completed_at": ended,
            "lateness_us": number,
            "state": "failed" if hour == 1 else "done",
            "error": f"error {number}" if hour == 1 else None,
        }
        for hour in range(HOURS)
    ]
    put(journal / "date=2026-11-20" / "hour=16" / f"jobs-{number}.parquet", *rows, rows[0])


def files(out: Path, *, hours: int = HOURS) -> dict[str, int]:
    """Return the times of all files of outcomes and of hours' rollups of the first hours."""
    names = {f"{START + timedelta(hours=hour):%H}" for hour in range(hours)}
    found = [*(out / "outcomes").rglob("*.parquet"), *out.glob(f"{FOLDER}/*/hours/*/*.parquet")]
    return {str(path): path.stat().st_mtime_ns for path in found if path.parent.name[-2:] in names}


def run(out: Path, journal: Path, engine: Any) -> None:
    """Bring outcomes and waits up to date."""
    found = Run(str(out), engine, journal=str(journal))
    found.update()
    found.write_waits()


@pytest.mark.parametrize("engine_name", ["duckdb", "spark"])
def test_an_hour_gets_a_file_more(
    tmp_path: Path, engine_name: str, request: pytest.FixtureRequest
) -> None:
    """Of outcomes and of its rollup; the others stay, and all is as if it was read at once."""
    journal, grown, once = (tmp_path / name for name in ("journal", "grown", "once"))
    spark: SparkSession | None = None
    if engine_name == "spark":
        spark = request.getfixturevalue("spark")
    engine = spark or connected(threads=1)
    SyntheticJournal(operations=600, hours=HOURS).write(journal)
    run(grown, journal, engine)
    # Spark runs the same SQL: one round shows it.
    for number in range(1 if spark else 3):
        before = files(grown)
        write_jobs(journal, number)
        run(grown, journal, engine)
        assert before.items() <= files(grown).items()
        assert len(files(grown)) == len(before) + 2 * HOURS
    run(once, journal, connected(threads=1))
    assert outcomes(Run(str(grown), engine).outcomes.folder) == outcomes(
        Run(str(once), engine).outcomes.folder
    )
    assert waits(grown, *TABLES) == waits(once, *TABLES)
    assert Run(str(grown), engine).failed_jobs() == Run(str(once), engine).failed_jobs()


def test_many_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into one, with what is new."""
    monkeypatch.setattr("purgatory.pipeline.outcomes.update_run._MOST_RUNS", 3)
    journal, out = tmp_path / "journal", tmp_path / "out"
    SyntheticJournal(operations=600, hours=HOURS).write(journal)
    counts = []
    for number in range(4):
        run(out, journal, connected(threads=1))
        counts.append(len(files(out, hours=1)))
        write_jobs(journal, number)
    assert counts == [2, 4, 6, 2]


def test_an_operation_that_was_known_is_merged(tmp_path: Path) -> None:
    """A record that comes again, from another file, is of the same operation."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    SyntheticJournal(operations=600, hours=HOURS).write(journal)
    write_jobs(journal, 1)
    run(out, journal, connected(threads=1))
    known = outcomes(Run(str(out), connected()).outcomes.folder)
    [again] = journal.rglob("jobs-1.parquet")
    again.with_name("jobs-again.parquet").write_bytes(again.read_bytes())
    run(out, journal, connected(threads=1))
    found = outcomes(Run(str(out), connected()).outcomes.folder)
    assert [row["operation_id"] for row in found] == [row["operation_id"] for row in known]
    assert sum(row["records"] for row in found) == sum(row["records"] for row in known) + HOURS + 1
