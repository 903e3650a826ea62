"""Broken files: named, counted, and left out or refused."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import BadFileError, OnBadFile, OutcomeTable
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.pipeline.sql.duck import DuckRunner, connected
from purgatory.pipeline.sql.spark import SparkRunner
from tests.pipeline.spark_servers import PLACE
from tests.pipeline.synthetic import Written, write
from tests.synthetic_journal import Fault, inject

REASONS: dict[Fault, str] = {
    "truncated": "not a Parquet file, or cut off",
    "empty": "not a Parquet file, or cut off",
    "not-parquet": "not a Parquet file, or cut off",
    "wrong-schema": "no purgatory.schema in its metadata",
    "unknown-version": "schema version '999', and this release reads '1'",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A small journal without a fault."""
    return write(tmp_path_factory.mktemp("good"), operations=2_000, hours=0.5)


@pytest.fixture
def broken(good: Written, tmp_path: Path) -> Written:
    """A copy of it to break."""
    folder = tmp_path / "journal"
    shutil.copytree(good.folder, folder)
    return Written(folder, good.truth, good.journal)


def damage(folder: Path) -> Path:
    """Spoil the rows of a file, and not its footer; return it."""
    source = next(iter(sorted(folder.rglob("*.parquet"))))
    path = source.with_name("zz-damaged.parquet")
    content = bytearray(source.read_bytes())
    for place in range(4, len(content) // 2):
        content[place] ^= 0x5A
    path.write_bytes(content)
    return path


def test_every_fault_is_named_and_left_out(broken: Written, empty_table: OutcomeTable) -> None:
    """All kinds of broken files at once: each has its reason, and the others are read."""
    paths = {fault: inject(broken.folder, fault) for fault in REASONS}
    inject(broken.folder, "half-written")
    damaged = damage(broken.folder)
    said: list[str] = []
    update = empty_table.update(str(broken.folder), on_progress=said.append)
    names = {str(path.relative_to(broken.folder)): fault for fault, path in paths.items()}
    damaged_name = str(damaged.relative_to(broken.folder))
    assert update.bad.keys() == {*names, damaged_name}
    for name, fault in names.items():
        assert update.bad[name].startswith((REASONS[fault], "empty"))
    assert f"skipped {len(names)} files that cannot be read" in said
    assert "skipped 1 damaged file" in said
    assert update.bad[damaged_name].startswith("damaged: ")
    assert update.operations == broken.truth.operations
    assert empty_table.manifest().bad == update.bad


@pytest.mark.skipif(PLACE == "connect", reason="a server of Spark Connect need not have Python")
def test_tasks_of_a_cluster_read_footers_on_spark(
    spark: SparkSession, broken: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver opens no file of the journal, and each bad file has the same reason."""
    for fault in REASONS:
        inject(broken.folder, fault)
    expected = OutcomeTable(DuckRunner(connected()), f"{tmp_path}/duck").update(str(broken.folder))
    opened, before = list[str](), LocalFolder.open

    def noted(folder: LocalFolder, path: str) -> BinaryIO:
        opened.append(folder.named(path))
        return before(folder, path)

    monkeypatch.setattr(LocalFolder, "open", noted)
    monkeypatch.setattr("purgatory.pipeline.sql.spark.READ_AHEAD", 2)
    runner = SparkRunner(spark)
    runner.is_cluster = True
    update = OutcomeTable(runner, f"{tmp_path}/spark").update(str(broken.folder))
    assert update == replace(expected, manifest=update.manifest)
    assert [path for path in opened if str(broken.folder) in path] == []


def test_the_command_names_each_bad_file_once(
    broken: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among its results; progress has the number."""
    paths = [inject(broken.folder, "truncated"), damage(broken.folder)]
    places = ["--journal", str(broken.folder), "--out", str(tmp_path / "out")]
    assert main(["outcomes", *places, "--engine", "duckdb"]) == 0
    said = capsys.readouterr()
    assert [said.out.count(path.name) for path in paths] == [1, 1]
    assert [said.err.count(path.name) for path in paths] == [0, 0]


def test_many_damaged_files_cost_two_merges(broken: Written, empty_table: OutcomeTable) -> None:
    """The first is found by the merge, all others at once; names with a colon are as good."""
    paths = [damage(broken.folder) for _ in range(1)]
    for number in range(3):
        paths.append(paths[0].with_name(f"zz-host:{number}.parquet"))
        shutil.copy(paths[0], paths[-1])
    good = sorted(broken.folder.rglob("0*.parquet"))[0]
    good.rename(good.with_name("host:4711.parquet"))
    said: list[str] = []
    update = empty_table.update(str(broken.folder), on_progress=said.append)
    assert update.bad.keys() == {str(path.relative_to(broken.folder)) for path in paths}
    assert update.operations == broken.truth.operations
    assert len([line for line in said if "writing" in line]) <= 2


def test_columns_of_another_type(broken: Written, empty_table: OutcomeTable) -> None:
    """Not read as what they may have meant, and no reason to leave out other files."""
    source = sorted(broken.folder.rglob("*.parquet"))[0]
    events = pq.read_table(source)
    wrong = {}
    for name, kind in (
        ("seq", pa.string()),
        ("seq", pa.int32()),
        ("at", pa.timestamp("us")),
        ("deadline", pa.int64()),
        ("kind", pa.binary()),
    ):
        index = events.schema.get_field_index(name)
        path = source.with_name(f"zz-{name}-{kind}.parquet")
        column = events.column(index).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        pq.write_table(events.set_column(index, pa.field(name, kind), column.cast(kind)), path)
        wrong[str(path.relative_to(broken.folder))] = f"missing or of another type: {name}"
    update = empty_table.update(str(broken.folder))
    assert update.bad == wrong
    assert update.operations == broken.truth.operations


@pytest.mark.skipif(sys.platform == "win32", reason="its names and files are other ones")
def test_odd_files_are_named_and_left_out(broken: Written, empty_table: OutcomeTable) -> None:
    """Pipes, links that lead to themselves or back, names and metadata of any kind."""
    source = sorted(broken.folder.rglob("*.parquet"))[0]
    odd = source.with_name
    os.mkfifo(odd("zz-pipe.parquet"))
    odd("zz-self.parquet").symlink_to("zz-self.parquet")
    shutil.copy(source, os.fsdecode(bytes(odd("zz-")) + b"\xff.parquet"))
    (broken.folder / "back").symlink_to(".")
    (broken.folder / "self").symlink_to("self")
    events = pq.read_table(source, partitioning=None)
    metadata = {**events.schema.metadata, b"purgatory.sample": b"[" * 200_000}
    pq.write_table(events.replace_schema_metadata(metadata), odd("zz-deep.parquet"))
    pq.write_table(events.append_column("SEQ", events["seq"]), odd("zz-twice.parquet"))
    bad = empty_table.update(str(broken.folder)).bad
    assert {path.rpartition("/")[2]: reason for path, reason in bad.items()} == {
        "zz-pipe.parquet": "not a regular file",
        "zz-self.parquet": "Too many levels of symbolic links",
        "zz-\N{REPLACEMENT CHARACTER}.parquet": "its name is not UTF-8",
        "zz-deep.parquet": f"purgatory.sample in its metadata is '{'[' * 80}', not shares of kinds",
        "zz-twice.parquet": "missing or of another type: seq",
    }
    manifest = empty_table.manifest()
    assert (manifest.read_files, manifest.rows) == (broken.truth.files, broken.truth.rows)


def test_a_file_that_was_mended_is_read(broken: Written, empty_table: OutcomeTable) -> None:
    """What is left out is looked at again in the next run."""
    path = sorted(broken.folder.rglob("*.parquet"))[-1]
    content = path.read_bytes()
    path.write_bytes(content[:100])
    first = empty_table.update(str(broken.folder))
    assert (len(first.bad), first.new_files) == (1, broken.truth.files - 1)
    path.write_bytes(content)
    second = empty_table.update(str(broken.folder))
    assert (second.bad, second.new_files) == ({}, 1)
    assert second.operations == broken.truth.operations


def truncate(folder: Path) -> Path:
    """Put half a file beside the others; return it."""
    return inject(folder, "truncated")


@pytest.mark.parametrize("spoil", [truncate, damage])
def test_a_fault_can_be_refused(
    spoil: Callable[[Path], Path], broken: Written, empty_table: OutcomeTable
) -> None:
    """Refused is the whole run: it names the file, says what to do, and publishes nothing."""
    path = spoil(broken.folder)
    with pytest.raises(BadFileError) as caught:
        empty_table.update(str(broken.folder), on_bad_file=OnBadFile.REFUSE)
    assert path.name in str(caught.value)
    assert "--on-bad-file skip" in str(caught.value)
    assert empty_table.manifest().run == 0


def test_only_bad_files_make_an_empty_table(tmp_path: Path, empty_table: OutcomeTable) -> None:
    """A journal of which nothing can be read is no crash: nothing is in, and all are named."""
    folder = tmp_path / "journal" / "date=2026-11-20" / "hour=06"
    folder.mkdir(parents=True)
    (folder / "a.parquet").write_bytes(b"")
    update = empty_table.update(str(tmp_path / "journal"))
    assert (update.operations, list(update.bad)) == (0, ["date=2026-11-20/hour=06/a.parquet"])


def test_a_full_disk_is_no_reason_to_delete_outcomes(
    broken: Written,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor to look for damaged files: the advice is on what is wrong."""

    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException('Could not write file "x": No space left on device')

    monkeypatch.setattr(DuckRunner, "write_outcomes", full)
    monkeypatch.setattr("purgatory.pipeline.outcomes.update_run.damage", NotImplemented)
    places = ["--journal", str(broken.folder), "--out", str(tmp_path / "out")]
    assert main(["outcomes", *places, "--engine", "duckdb"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device. Free some space" in said and "delete" not in said


def test_a_spoilt_manifest_is_named(broken: Written, empty_table: OutcomeTable) -> None:
    """Outcomes whose manifest is no manifest are refused, with the way out."""
    empty_table.update(str(broken.folder))
    manifest = next(Path(empty_table.folder.uri.removeprefix("file:")).rglob("_manifests/*.json"))
    manifest.write_text("{}")
    with pytest.raises(BadFileError, match="not a manifest of this release"):
        empty_table.update(str(broken.folder))
