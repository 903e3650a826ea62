"""Broken files: named, counted, and left out or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import BadFileError, OnBadFile, OutcomeTable
from tests.pipeline.synthetic import Written, write
from tests.synthetic_journal import Fault, inject

REASONS: dict[Fault, str] = {
    "truncated": "not a Parquet file, or cut off",
    "empty": "not a Parquet file, or cut off",
    "not-parquet": "not a Parquet file, or cut off",
    "wrong-schema": "no purgatory.schema in its metadata",
    "unknown-version": "schema version '999'; known is 1",
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


@pytest.fixture
def empty_table(spark: SparkSession, tmp_path: Path) -> OutcomeTable:
    """A table to be."""
    return OutcomeTable(spark, str(tmp_path / "outcomes"))


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
        assert update.bad[name].startswith(REASONS[fault])
        assert any(name in line for line in said)
    assert update.bad[damaged_name].startswith("damaged: ")
    assert update.operations == broken.truth.operations
    assert empty_table.manifest().bad == update.bad


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


def test_a_spoilt_manifest_is_named(broken: Written, empty_table: OutcomeTable) -> None:
    """Outcomes whose manifest is no manifest are refused, with the way out."""
    empty_table.update(str(broken.folder))
    manifest = next(Path(empty_table.folder.uri.removeprefix("file:")).rglob("_manifests/*.json"))
    manifest.write_text("{}")
    with pytest.raises(BadFileError, match="not a manifest of this release"):
        empty_table.update(str(broken.folder))
