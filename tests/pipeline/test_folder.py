"""Folders of results: whose a file is, and who may write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import OutputInUseError
from purgatory.pipeline.folder import Folder
from purgatory.pipeline.tables import Tables


def test_a_run_that_was_overtaken_puts_no_half_in_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What it wrote before the other one began is gone: the tables are those of the other."""
    tables = Tables(spark, str(tmp_path))

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


def test_a_neighbour_is_not_within(spark: SparkSession, tmp_path: Path) -> None:
    """Though its name begins alike: a damaged outcome was taken for a file of the journal's."""
    folder = Folder(spark, str(tmp_path / "history"))
    assert folder.relative_of_uri(f"file://{tmp_path}/history/a%20b.parquet") == "a b.parquet"
    assert folder.relative_of_uri(f"file://{tmp_path}/history-results/b.parquet") is None
    assert folder.relative_of_uri("file:/elsewhere/b.parquet") is None


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
def test_what_is_within_is_listed(
    spark: SparkSession, tmp_path: Path, place: str, is_held: bool
) -> None:
    """A folder holds another one if its files would be in the listing; what is hidden is not."""
    folder, other = Folder(spark, str(tmp_path / "history")), Folder(spark, str(tmp_path / place))
    assert folder.holds(other) == is_held
    other.write_bytes("a.parquet", b"")
    assert bool(folder.files(".parquet")) == is_held
