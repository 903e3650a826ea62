"""A journal and results in S3, without Java."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from purgatory.pipeline import EVENT_SCHEMA, OutputInUseError, PipelineError
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.rollups.rollup_files import NodeFiles
from purgatory.pipeline.source.data_source import PurgatoryDataSource
from purgatory.pipeline.spark.folder import Folder, file_system_at
from purgatory.pipeline.spark.tables import Tables
from tests.pipeline.s3_server import BUCKET, needs_s3, s3_server
from tests.pipeline.synthetic import TABLES, Written, write
from tests.synthetic_journal import inject

pytestmark = [needs_s3, pytest.mark.usefixtures("no_server")]


@pytest.fixture(scope="module")
def s3() -> Iterator[fs.S3FileSystem]:
    """A server with a bucket."""
    file_system_at.cache_clear()
    with s3_server() as files:
        yield files
    file_system_at.cache_clear()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A local journal with a broken file."""
    folder = tmp_path_factory.mktemp("s3") / "journal"
    written = write(folder, operations=2_000, hours=1.5, crashes=(0.5,), duplicate_share=0.05)
    inject(folder, "truncated")
    return written


@pytest.fixture
def journal(s3: fs.S3FileSystem, small: Written) -> str:
    """The same in S3."""
    fs.copy_files(str(small.folder), f"{BUCKET}/journal", destination_filesystem=s3)
    return f"s3://{BUCKET}/journal"


def test_the_results_are_those_of_local_folders(
    journal: str, small: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tables, the advice and what is said; a second run finds nothing new."""
    there, here = f"s3://{BUCKET}/results", str(tmp_path)
    assert main(["report", "--journal", str(small.folder), "--out", here]) == 0
    expected = capsys.readouterr().out
    assert main(["report", "--journal", journal, "--out", there]) == 0
    assert capsys.readouterr().out == expected.replace(here, there)
    for name in TABLES:
        rows = [Tables(out).rows("waits", name) for out in (here, there)]
        assert sorted(rows[0], key=repr) == sorted(rows[1], key=repr)
    assert main(["outcomes", "--journal", journal, "--out", there]) == 0
    assert "0 records of 0 new files, 0 hours written" in capsys.readouterr().out
    report = Folder(f"{there}/report")
    assert report.read_text("report.html").startswith("<!doctype html>")
    assert json.loads(Folder(there).read_text("advice/advice.json"))


def test_the_data_source_reads_and_adds_files(
    journal: str, small: Written, s3: fs.S3FileSystem
) -> None:
    """As a task of Spark does: groups of good files, and files that are hidden until the end."""
    source = PurgatoryDataSource({"path": journal, "onBadFile": "skip"})
    # Any: Spark's types are those of rows, and the source has batches of Arrow.
    reader: Any = source.reader(EVENT_SCHEMA)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == small.truth.rows
    added = f"s3://{BUCKET}/added"
    writer: Any = PurgatoryDataSource({"path": added}).writer(EVENT_SCHEMA, overwrite=False)
    message = writer.write(iter([batches[0]]))
    assert Folder(added).files(".parquet") == []
    writer.commit([message])
    files = Folder(added).files(".parquet")
    rows = [pq.read_table(f"{BUCKET}/added/{file.path}", filesystem=s3).num_rows for file in files]
    assert sum(rows) == batches[0].num_rows


def test_files_elsewhere_are_copied(s3: fs.S3FileSystem) -> None:
    """DuckDB reads and writes local copies of rollups, and only new ones are sent."""
    folder = Folder(f"s3://{BUCKET}/elsewhere")
    here, there = NodeFiles(folder), NodeFiles(folder)
    path = here.path("run=1/parts/one.parquet")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one")
    assert not folder.exists()
    here.publish("run=1/parts")
    folder.write_bytes("run=1/parts/one.parquet", b"sent")
    here.publish("run=1/parts")
    (copy,) = there.fetch(["run=1/parts", "run=1/none"])
    assert Path(copy).read_bytes() == b"sent"
    assert here.fetch(["run=1/parts"]) == [str(path)]


def test_of_two_runs_that_publish_at_once_one_fails(
    s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later claim sees the earlier one; claims are removed."""
    folder = Folder(f"s3://{BUCKET}/twice")
    written = Folder.write_bytes

    def overtaken(self: Folder, path: str, content: bytes) -> None:
        written(self, path, content)
        if path.endswith(".claim"):
            monkeypatch.setattr(Folder, "write_bytes", written)
            with pytest.raises(OutputInUseError, match="run this one again"):
                folder.write_new("manifests/1.json", "second")

    monkeypatch.setattr(Folder, "write_bytes", overtaken)
    folder.write_new("manifests/1.json", "first")
    assert folder.names("manifests") == ["1.json"]
    assert folder.read_text("manifests/1.json") == "first"
    with pytest.raises(OutputInUseError):
        folder.write_new("manifests/1.json", "third")


def test_a_missing_bucket_is_said_in_a_sentence(
    s3: fs.S3FileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a folder without a journal."""
    assert main(["outcomes", "--journal", "s3://none/journal", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "No journal in s3://none/journal" in said and "Traceback" not in said


def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and what to check."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    file_system_at.cache_clear()
    with pytest.raises(PipelineError, match=r"s3://logs/x: .*Check the address, and the cred"):
        Folder("s3://logs/x").exists()
    file_system_at.cache_clear()
