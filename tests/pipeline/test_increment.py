"""A new hour costs that hour: nothing of other days is read again, and Spark runs few jobs."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.cli.engine import DuckEngine, Engine, SparkEngine
from purgatory.pipeline.duck.connection import connected
from tests.pipeline.spark_servers import PLACE
from tests.synthetic_journal import START, SyntheticJournal

OLD = (START - timedelta(days=90), START - timedelta(days=40), START - timedelta(days=1))
MOST_JOBS = 6
"""Of Spark: a summary of the events, outcomes, their description, and rollups with two lists."""


def write_hour(folder: Path, start: datetime, seed: int) -> None:
    SyntheticJournal(operations=300, hours=0.5, start=start, seed=seed).write(folder)


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """A journal with three days that were read, of which nothing can be read again, and an hour."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    for seed, start in enumerate(OLD):
        write_hour(journal, start, seed)
    read = ["--journal", str(journal), "--out", str(out), "--engine", "duckdb"]
    assert main(["waits", *read]) == 0
    month = f"{START:%Y-%m}"
    for path in [*journal.rglob("*.parquet"), *out.rglob("*.parquet")]:
        inside = path.relative_to(tmp_path).as_posix()
        # A month is merged from its days, and tables from months.
        is_used = "/months/" in inside or ("/days/" in inside and f"period={month}" in inside)
        if not (inside.startswith("out/rollups") and is_used):
            spoil(path)
    write_hour(journal, START, len(OLD))
    return str(journal), str(out)


def spoil(path: Path) -> None:
    """Overwrite a file with as many other bytes, at the same time."""
    status = path.stat()
    path.write_bytes(b"\0" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_new_hour_reads_no_other_day(places: tuple[str, str]) -> None:
    """From the journal to the report, by the command."""
    journal, out = places
    arguments = ["--journal", journal, "--out", out, "--engine", "duckdb"]
    assert main(["report", *arguments, "--on-bad-file", "refuse"]) == 0
    assert operations(DuckEngine(connected(threads=1)), out) == 300 * (len(OLD) + 1)


@pytest.mark.skipif(PLACE != "local", reason="the jobs are counted by this machine's Spark")
def test_a_new_hour_takes_few_jobs_of_spark(spark: SparkSession, places: tuple[str, str]) -> None:
    """None of which exchanges rows, as there are few; nor is more read than by DuckDB."""
    journal, out = places
    engine = SparkEngine(spark)
    before = counted(spark)
    engine.outcome_table(out).update(journal)
    engine.write_waits(out, lambda _: None)
    jobs, shuffles = (now - then for now, then in zip(counted(spark), before, strict=True))
    assert operations(engine, out) == 300 * (len(OLD) + 1)
    assert 0 < jobs <= MOST_JOBS
    # Asking for the number takes one.
    assert shuffles == 1


def counted(spark: SparkSession) -> tuple[int, int]:
    """Return the numbers of jobs and of shuffles of a session so far."""
    # Any: py4j's objects have the methods of the Java objects behind them.
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.dagScheduler().numTotalJobs()), int(context.newShuffleId())


def operations(engine: Engine, out: str) -> int:
    return sum(row["operations"] for row in engine.tables(out).rows("waits", "by_kind"))
