"""The journal's files: where they lie, when they are complete, and what failures leave."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from purgatory.journal import EVENT_SCHEMA, ParquetFiles
from purgatory.journal.schema import SAMPLE_KEY
from purgatory.testing import MockClock
from tests.cases import cases
from tests.journal_batches import (
    batch_at,
    complete_files,
    hidden_files,
    journal_clock,
    rows_in,
    rows_of,
)
from tests.synthetic_journal import inject


@pytest.fixture
def clock() -> MockClock:
    return journal_clock()


def opened(directory: Path, clock: MockClock, **options: Any) -> ParquetFiles:
    files = ParquetFiles(directory, **options)
    files.open("web 1/x", clock)
    return files


def test_a_file_lies_in_the_folder_of_its_hour(tmp_path: Path, clock: MockClock) -> None:
    """In UTC, by the time of the rows: a batch over a full hour goes into two."""
    files = opened(tmp_path, clock)
    rows = rows_of(clock)
    files.write(batch_at(rows, clock, 3))
    clock.advance(2_000)
    files.write(batch_at(rows, clock, 2))
    files.roll()
    assert [str(path.relative_to(tmp_path)) for path in complete_files(tmp_path)] == [
        "date=2026-11-21/hour=14/web-1-x-000001.parquet",
        "date=2026-11-21/hour=15/web-1-x-000002.parquet",
    ]
    assert [pq.ParquetFile(path).metadata.num_rows for path in complete_files(tmp_path)] == [3, 2]
    assert (files.written, files.files) == (5, 2)
    assert files.bytes == sum(path.stat().st_size for path in complete_files(tmp_path))


def test_a_file_says_what_was_sampled(tmp_path: Path, clock: MockClock) -> None:
    """In its metadata, as its batches do; readers scale by it."""
    files = opened(tmp_path, clock)
    batch = batch_at(rows_of(clock), clock, 3)
    metadata = {**(EVENT_SCHEMA.metadata or {}), SAMPLE_KEY: b'{"park": 0.1}'}
    files.write(batch.replace_schema_metadata(metadata))
    files.roll()
    found = [pq.read_schema(path).metadata for path in complete_files(tmp_path)]
    assert [{key: one[key] for key in metadata} for one in found] == [metadata]


def test_files_are_for_their_user_only(tmp_path: Path, clock: MockClock) -> None:
    """Keys and errors may be about people."""
    previous = os.umask(0)
    try:
        files = opened(tmp_path / "journal", clock)
        files.write(batch_at(rows_of(clock), clock, 1))
        files.roll()
    finally:
        os.umask(previous)
    (path,) = complete_files(tmp_path / "journal")
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in path.parents[:3]:
        assert folder.stat().st_mode & 0o777 == 0o700, folder


@pytest.mark.parametrize("worker", ["_web", ".web", "-web", "\N{SNOWMAN}web", "", "w" * 300])
def test_whatever_a_worker_is_called_readers_see_its_files(
    worker: str, tmp_path: Path, clock: MockClock
) -> None:
    """A name that begins with a dot or an underscore is hidden from Spark, and one may be long."""
    files = ParquetFiles(tmp_path)
    files.open(f"{worker}-0123456789ab", clock)
    files.write(batch_at(rows_of(clock), clock, 3))
    files.roll()
    (path,) = complete_files(tmp_path)
    assert path.name[0] not in "._" and path.name.endswith("-0123456789ab-000001.parquet")


def test_no_reader_sees_a_file_before_it_is_complete(tmp_path: Path, clock: MockClock) -> None:
    """It is hidden, and its name does not end as that of the others."""
    files = opened(tmp_path, clock, group_rows=1)
    files.write(batch_at(rows_of(clock), clock, 3))
    assert complete_files(tmp_path) == []
    [hidden] = hidden_files(tmp_path)
    assert hidden.name == ".web-1-x-000001.parquet.tmp"
    with pytest.raises(duckdb.IOException, match="No files found"):
        duckdb.connect().execute(f"select * from read_parquet('{tmp_path}/**/*.parquet')")
    files.roll()
    assert hidden_files(tmp_path) == []
    assert len(rows_in(tmp_path)) == 3


@pytest.mark.parametrize(
    "options", [{"max_rows": 10}, {"max_bytes": 1, "group_rows": 10}], ids=["rows", "bytes"]
)
def test_a_file_that_is_large_enough_is_complete(
    tmp_path: Path, clock: MockClock, options: dict[str, int]
) -> None:
    """By its rows, or by its bytes."""
    files, rows = opened(tmp_path, clock, **options), rows_of(clock)
    for _ in range(3):
        files.write(batch_at(rows, clock, 5))
    assert (files.files, files.written) == (1, 10)
    files.roll()
    assert (files.files, files.written) == (2, 15)


def test_leftovers_of_a_crash_are_removed_and_reported(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What a living writer has open is none, and neither is a complete file."""
    living = opened(tmp_path, clock, group_rows=1)
    living.write(batch_at(rows_of(clock), clock, 1))
    living.roll()
    living.write(batch_at(rows_of(clock), clock, 1))
    leftover = inject(tmp_path, "half-written").rename(
        next(tmp_path.glob("*/*")) / ".dead-000001.parquet.tmp"
    )
    with caplog.at_level(logging.WARNING):
        opened(tmp_path, clock)
    assert not leftover.exists()
    assert len(hidden_files(tmp_path)) == 1
    assert str(leftover) in caplog.text
    living.roll()
    assert len(rows_in(tmp_path)) == 2


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path, clock: MockClock) -> None:
    """At `open`, not some time later on a thread."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        opened(tmp_path / "file" / "journal", clock)


def test_a_folder_in_the_way_fails_before_anything_is_written(
    tmp_path: Path, clock: MockClock
) -> None:
    """The rows that had been taken are counted as lost all the same."""
    files = opened(tmp_path, clock, group_rows=1)
    (tmp_path / "date=2026-11-21").write_text("in the way")
    with pytest.raises(OSError, match="date=2026-11-21"):
        files.write(batch_at(rows_of(clock), clock, 3))
    assert files.abandon() == 3
    (tmp_path / "date=2026-11-21").unlink()
    files.write(batch_at(rows_of(clock), clock, 2))
    files.roll()
    assert files.written == 2


_FULL_DISK = """
import resource, sys
from pathlib import Path
from purgatory.journal import ParquetFiles
from tests.journal_batches import batch_at, journal_clock, rows_of, complete_files, hidden_files

directory, clock = Path(sys.argv[1]), journal_clock()
files, rows = ParquetFiles(directory, group_rows=1), rows_of(clock)
files.open("full", clock)
files.write(batch_at(rows, clock, 10))
files.roll()
# A file may not be larger from here on: as a disk that is full.
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
try:
    while True:
        files.write(batch_at(rows, clock, 1_000))
except OSError as exc:
    print(exc.errno, files.abandon() % 1_000, hidden_files(directory), files.written)
files.write(batch_at(rows, clock, 10))
try:
    files.roll()
except OSError:
    # So little room that not even the end of a file fits.
    print(files.abandon())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
files.write(batch_at(rows, clock, 10))
files.roll()
print(files.written, len(complete_files(directory)))
"""


def test_a_disk_that_is_full_leaves_complete_files_only(tmp_path: Path) -> None:
    """What was begun is removed, which makes room; once there is room it goes on."""
    command = [sys.executable, "-W", "error", "-c", _FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["27 0 [] 10", "10", "20 2"]
    assert len(rows_in(tmp_path)) == 20


def test_an_empty_directory_is_refused_by_name() -> None:
    """It would be the working folder: say "." for that."""
    with pytest.raises(ValueError, match="directory is ''"):
        ParquetFiles("")
    assert ParquetFiles(".").name == "."


@cases("name", ["max_age", "max_rows", "max_bytes", "group_rows"])
@cases("value", [0, -1, float("nan"), float("inf")])
def test_bounds_are_positive(name: str, value: float, tmp_path: Path) -> None:
    """Or the constructor says which one is not."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        ParquetFiles(tmp_path, **options)
