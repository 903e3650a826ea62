"""A new hour costs that hour: nothing of other days is read again, and Spark runs few jobs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.rollups.rollup_files import ALL, read_rollup_manifest
from purgatory.pipeline.run import Run
from purgatory.pipeline.spark.folder import File, LocalFolder
from purgatory.pipeline.spark.session import REMOTE_VARIABLE
from tests.pipeline.spark_servers import PLACE
from tests.synthetic_journal import START, SyntheticJournal

OLD = (START - timedelta(days=90), START - timedelta(days=40), START - timedelta(days=1))
UNUSED = {"pandas"}
"""What would take longer to import than the hour to add."""
MOST_JOBS = 3
"""Of Spark: a summary of the events, outcomes, and their description."""


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
    """From the journal to the report, by the command, which imports no more than it needs."""
    journal, out = places
    command = ["report", "--journal", journal, "--out", out, "--engine", "duckdb"]
    program = (
        "import sys; from purgatory.pipeline.__main__ import main; "
        f"assert main({[*command, '--on-bad-file', 'refuse']}) == 0; "
        f"assert not {UNUSED} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert operations(out) == 300 * (len(OLD) + 1)


def test_a_new_hour_searches_for_no_garbage(places: tuple[str, str]) -> None:
    """Among all that the manifests of a year hold; afterwards Python does so again."""
    journal, out = places
    generations: Counter[int] = Counter()

    def note(phase: str, details: dict[str, int]) -> None:
        generations[details["generation"]] += phase == "start"

    gc.callbacks.append(note)
    try:
        assert main(["report", "--journal", journal, "--out", out, "--engine", "duckdb"]) == 0
    finally:
        gc.callbacks.remove(note)
    # As its options are parsed.
    assert generations.total() <= 5
    assert gc.isenabled()


def test_later_hours_merge_no_day_or_month_that_has_settled(places: tuple[str, str]) -> None:
    """Their parts are in a prefix, which is made again when more have settled."""
    journal, out = places
    read = ["waits", "--journal", journal, "--out", out, "--engine", "duckdb"]
    assert main(read) == 0
    day, month = f"{START:%Y-%m-%d}", f"{START:%Y-%m}"
    for path in Path(out, "rollups").glob("run=*/*/parts/period=*/*.parquet"):
        if path.parts[-4] in ("days", "months") and path.parent.name[7:] not in (day, month):
            spoil(path)
    for hours in (1, 24, 25):
        write_hour(Path(journal), START + timedelta(hours=hours), len(OLD) + hours)
        assert main(read) == 0
    assert operations(out) == 300 * (len(OLD) + 4)
    manifest = read_rollup_manifest(LocalFolder(f"{out}/rollups"))
    assert {name: [*prefix.members] for name, prefix in manifest.prefixes.items()} == {
        month: [f"{OLD[2]:%Y-%m-%d}", day],
        ALL: [f"{OLD[0]:%Y-%m}", f"{OLD[1]:%Y-%m}"],
    }
    # Those of earlier runs are deleted.
    assert len([*Path(out, "rollups").glob("run=*/prefixes/parts/period=*")]) == 2


@pytest.mark.parametrize("engine", ["auto", "duckdb"])
def test_a_new_hour_opens_each_file_once(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Manifests and tables, which grow with the journal; and no folder of a run is listed.

    The journal is listed once, also if its size chooses the engine.

    DuckDB reads what it merges by itself.
    """
    opened: Counter[str] = Counter()
    listed: list[str] = []
    searched: list[str] = []
    opened_before, listed_before = LocalFolder.open, LocalFolder.names
    searched_before = LocalFolder.files

    def counted_open(folder: LocalFolder, path: str) -> BinaryIO:
        opened[folder.named(path)] += 1
        return opened_before(folder, path)

    def noted_names(folder: LocalFolder, path: str = "") -> list[str]:
        listed.append(path)
        return listed_before(folder, path)

    def noted_files(folder: LocalFolder, suffix: str, path: str = "") -> list[File]:
        searched.append(folder.named(path))
        return searched_before(folder, suffix, path)

    monkeypatch.delenv(REMOTE_VARIABLE, raising=False)
    monkeypatch.setattr(LocalFolder, "open", counted_open)
    monkeypatch.setattr(LocalFolder, "files", noted_files)
    monkeypatch.setattr(LocalFolder, "names", noted_names)
    journal, out = places
    assert main(["report", "--journal", journal, "--out", out, "--engine", engine]) == 0
    assert searched.count(f"{journal}/") == 1
    assert {path for path, times in opened.items() if times > 1} == set()
    assert sum(path.endswith(".json") for path in opened) == 3
    assert {path for path in listed if "run=" in path} == set()


@pytest.mark.skipif(PLACE == "connect", reason="a client has no scheduler to ask for its jobs")
def test_a_new_hour_takes_few_jobs_of_spark(spark: SparkSession, places: tuple[str, str]) -> None:
    """None of which exchanges rows, as there are few; nor is more read than by DuckDB."""
    journal, out = places
    run = Run(out, spark, journal=journal)
    before = counted(spark)
    run.update()
    run.write_waits()
    jobs, shuffles = (now - then for now, then in zip(counted(spark), before, strict=True))
    assert operations(out) == 300 * (len(OLD) + 1)
    assert 0 < jobs <= MOST_JOBS
    # Asking for the number takes one.
    assert shuffles == 1


def counted(spark: SparkSession) -> tuple[int, int]:
    """Return the numbers of jobs and of shuffles of a session so far."""
    # Any: py4j's objects have the methods of the Java objects behind them.
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.dagScheduler().numTotalJobs()), int(context.newShuffleId())


def operations(out: str) -> int:
    return sum(row["operations"] for row in Run(out).tables.rows("waits", "by_kind"))
