"""Journals of many small files: each is opened once, by whatever engine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.outcomes import update_run
from purgatory.pipeline.schemas import COPY_SCHEMA
from purgatory.pipeline.spark.schemas import spark_schema
from purgatory.pipeline.sql import outcomes as sql
from purgatory.pipeline.sql.duck import DuckRunner, connected
from purgatory.pipeline.sql.runner import Place
from purgatory.pipeline.sql.spark import frame
from tests.pipeline.synthetic import Written, outcomes, write


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """A journal of enough small files to be copied."""
    found = write(tmp_path / "journal", operations=1_000, hours=1.5, rows_per_file=100)
    monkeypatch.setattr(update_run, "_MANY_FILES", 10)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many files DuckDB is to read of each folder, in all of its relations."""
    found: Counter[str] = Counter()
    read = DuckRunner.read

    def counted(
        runner: DuckRunner, name: str, schema: StructType, *places: Place, **options: Any
    ) -> None:
        for folder, paths in places:
            found[str(folder)] += len(paths)
        read(runner, name, schema, *places, **options)

    monkeypatch.setattr(DuckRunner, "read", counted)
    return found


def test_small_files_are_read_once(small: Written, tmp_path: Path, reads: Counter[str]) -> None:
    """By one query, which copies them; all others read the copy, which is gone afterwards."""
    table, said = OutcomeTable(DuckRunner(connected(threads=2)), f"{tmp_path}/out"), list[str]()
    update = table.update(str(small.folder), on_progress=said.append)
    assert (update.operations, update.rows) == (small.truth.operations, small.truth.rows)
    # The copy, and the outcomes that were written.
    assert reads == {str(small.folder): update.new_files, f"{tmp_path}/out": 2}
    assert f"copying {update.new_files} small files to one" in said
    assert [*Path(tmp_path, "out").glob("copy=*")] == []


@pytest.mark.parametrize("place", ["DuckRunner.rows", "DuckRunner.write_outcomes", "publish"])
def test_a_killed_copy_is_neither_lost_nor_doubled(
    small: Written, tmp_path: Path, place: str
) -> None:
    """By SIGKILL before the summary, the merge and the manifest: the next run is as the first."""
    program = (
        "import os; from purgatory.pipeline.outcomes import update_run as module\n"
        "from purgatory.pipeline import OutcomeTable; module._MANY_FILES = 10\n"
        f"module.{place} = lambda *_: os.kill(os.getpid(), 9)\n"
        "table = OutcomeTable(module.DuckRunner(module.connected()), 'out')\n"
        f"table.update({str(small.folder)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len([*Path(tmp_path, "out").glob("copy=*/part-0.parquet")]) == 1
    table = OutcomeTable(DuckRunner(connected()), f"{tmp_path}/out")
    assert table.update(str(small.folder)).operations == small.truth.operations
    assert len(outcomes(table.folder)) == small.truth.operations
    names = {path.name.partition("=")[0] for path in Path(tmp_path, "out").iterdir()}
    assert names == {"_manifests", "date"}


def test_spark_reads_a_copy_of_small_files(
    spark: SparkSession, small: Written, tmp_path: Path, reads: Counter[str]
) -> None:
    """Which DuckDB makes, and which has no damaged file."""
    damaged = max(small.folder.rglob("*.parquet"))
    content = damaged.read_bytes()
    # Where its first page is; its footer is as long as its rows.
    damaged.write_bytes(content[:4] + bytes(300) + content[304:])
    table = OutcomeTable(spark, f"{tmp_path}/out")
    update = table.update(str(small.folder))
    assert [*update.bad] == [str(damaged.relative_to(small.folder))]
    assert 0.9 * small.truth.operations < update.operations < small.truth.operations
    # Once more without the damaged one.
    assert reads == {str(small.folder): 2 * update.new_files + 1}


def test_spark_scans_for_a_summary_once(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though hours and numbers of records are summed by different columns."""
    events = spark.createDataFrame([], spark_schema(COPY_SCHEMA))
    frame(spark, sql.summary(datetime.now(UTC)), new_events=events).explain()
    assert len(re.findall(r"(?:Scan|LocalTableScan)", capsys.readouterr().out)) == 1
