"""Folders of results: whose a file is, and who may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from purgatory.pipeline import OutputInUseError
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.folder import File, Folder, LocalFolder
from purgatory.pipeline.spark.tables import Tables


def test_a_run_that_was_overtaken_puts_no_half_in_place(tmp_path: Path) -> None:
    """What it wrote before the other one began is gone: the tables are those of the other."""
    tables = Tables(str(tmp_path))

    def write(new: str, *names: str) -> None:
        for name in names:
            tables.folder.write_bytes(f"{new}/{name}", b"")

    def overtaken(new: str) -> None:
        write(new, "a")
        tables.fill("waits", lambda new: write(new, "a", "b"))
        write(new, "b")

    with pytest.raises(OutputInUseError, match="run this one again"):
        tables.fill("waits", overtaken)
    assert tables.folder.names("waits") == ["a", "b"]
    tables.fill("waits", lambda new: write(new, "c"))
    assert tables.folder.names("waits") == ["c"]
    assert tables.folder.names() == ["waits"]


def test_what_an_overtaken_run_goes_on_to_write_is_in_no_table(tmp_path: Path) -> None:
    """It finds out at its end; until then nothing of it gets among what the other one writes."""
    tables = Tables(str(tmp_path))

    def overtaken(old: str) -> None:
        def overtake(new: str) -> None:
            tables.folder.write_bytes(f"{new}/a", b"")
            tables.folder.write_bytes(f"{old}/b", b"")

        tables.fill("waits", overtake)

    with pytest.raises(OutputInUseError, match="run this one again"):
        tables.fill("waits", overtaken)
    assert tables.folder.names("waits") == ["a"]
    assert tables.folder.names() == ["waits"]


def test_folders_are_made_where_they_are_not_only_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In HDFS, other than in S3, a file can only be written or renamed to a folder that exists."""
    system = (fs.LocalFileSystem(), str(tmp_path))
    monkeypatch.setattr("purgatory.pipeline.spark.folder.file_system_at", lambda _: system)
    folder = Folder("hdfs://cluster/results")
    folder.write_bytes("run=1/hour=1/a.parquet", b"a")
    folder.rename("run=1/hour=1/a.parquet", "date=1/hour=1/b.parquet")
    assert [file.path for file in folder.files("")] == ["date=1/hour=1/b.parquet"]
    folder.replace("date=1", "old/date=1")
    assert [file.path for file in folder.files("")] == ["old/date=1/hour=1/b.parquet"]
    folder.delete("old", "gone")
    assert folder.files("") == []


@pytest.mark.parametrize(
    ("place", "is_held"),
    [
        ("history", True),
        ("history/results/x", True),
        ("history/.results", False),
        ("history/_results/x", False),
        ("history-results", False),
        (".", False),
    ],
)
def test_what_is_within_is_listed(tmp_path: Path, place: str, is_held: bool) -> None:
    """A folder holds another one if its files would be in the listing; what is hidden is not."""
    folder, other = LocalFolder(str(tmp_path / "history")), LocalFolder(str(tmp_path / place))
    assert folder.holds(other) == is_held
    other.write_bytes("a.parquet", b"")
    assert bool(folder.files(".parquet")) == is_held


def test_a_local_folder_is_listed(tmp_path: Path) -> None:
    """By names, sizes and times, whatever is in the names; hidden files are not."""
    names = ("a b.parquet", "c%41/d [1].parquet", "e:f/g#h.parquet", "i.parquet/j.parquet")
    for number, name in enumerate((*names, ".k/l.parquet", "m/_n.parquet", "o.txt")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * number)
        os.utime(path, ns=(0, 1_763_000_000_999_999_999 + number * 500_000))
    (tmp_path / "p").symlink_to(tmp_path / "c%41")
    (tmp_path / "q.parquet").symlink_to("gone")
    folder = LocalFolder(str(tmp_path))
    expected = [
        File("a b.parquet", 0, 1_763_000_000_999),
        File("c%41/d [1].parquet", 1, 1_763_000_001_000),
        File("e:f/g#h.parquet", 2, 1_763_000_001_000),
        File("i.parquet/j.parquet", 3, 1_763_000_001_001),
        File("p/d [1].parquet", 1, 1_763_000_001_000),
    ]
    assert folder.files(".parquet") == expected
    assert [file.path for file in folder.files(".parquet", "p")] == ["p/d [1].parquet"]


def test_a_name_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    """The file cannot be read by that name, and is named as a broken one, on whatever terminal."""
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.parquet")).touch()
    (file,) = LocalFolder(str(tmp_path)).files(".parquet")
    assert file.path == "\N{REPLACEMENT CHARACTER}.parquet"


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is in it would be missing, and nobody would know."""

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PipelineError, match=f"^{tmp_path}: Permission denied"):
        LocalFolder(str(tmp_path)).files(".parquet")
