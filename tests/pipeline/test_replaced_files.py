"""Files of the journal that were touched, replaced or damaged since they were read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline import BadFileError, OnBadFile, OutcomeTable
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.outcomes.update_run import Update
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.pipeline.synthetic import outcomes
from tests.pipeline.test_bad_files import damage
from tests.synthetic_journal import SyntheticJournal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of two hours, in files of a thousand records."""
    folder = tmp_path / "journal"
    SyntheticJournal(operations=3_000, hours=2.0, rows_per_file=1_000).write(folder)
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def without(path: Path, operation_id: str) -> None:
    """Erase an operation from a file."""
    events = pq.read_table(path, partitioning=None)
    kept = [name != operation_id for name in events["operation_id"].to_pylist()]
    pq.write_table(events.filter(kept), path)


def test_a_touched_file_adds_nothing(
    empty_table: OutcomeTable, journal: Path, tmp_path: Path
) -> None:
    """As after a copy without times: neither records nor starts, and no gap is hidden."""
    first = files(journal)[0]
    pq.write_table(pq.read_table(first, partitioning=None).slice(0, 500), first)
    empty_table.update(str(journal))
    before, found = empty_table.manifest(), outcomes(empty_table.folder)
    for path in files(journal):
        os.utime(path, ns=(0, 0))
    update = empty_table.update(str(journal))
    assert (update.new_files, update.rows, update.written_hours) == (0, 0, ())
    after = empty_table.manifest()
    assert (after.starts, after.rows, after.read_files) == (
        before.starts,
        before.rows,
        before.read_files,
    )
    assert missing_records(after) == missing_records(before)
    assert outcomes(empty_table.folder) == found
    assert empty_table.update(str(journal)).known_files == len(files(journal))


def test_a_replaced_file_replaces_its_rows(
    empty_table: OutcomeTable, journal: Path, tmp_path: Path
) -> None:
    """What was corrected or erased is as if it had never been; records that were are no gap."""
    update = empty_table.update(str(journal))
    path = files(journal)[0]
    erased = pq.read_table(path, partitioning=None)["operation_id"][0].as_py()
    for place in files(journal):
        if erased in pq.read_table(place, partitioning=None)["operation_id"].to_pylist():
            without(place, erased)
    SyntheticJournal(operations=10, hours=0.5, seed=9).write(journal / "new")
    update = empty_table.update(str(journal))
    assert update.replaced[str(path.relative_to(journal))].endswith("made again")
    assert update.unknown_rows == 0 and missing_records(update.manifest) == {}
    fresh = OutcomeTable(DuckRunner(connected()), f"{tmp_path}/fresh")
    fresh.update(str(journal))
    expected = outcomes(fresh.folder)
    assert outcomes(empty_table.folder) == expected
    assert not any(row["operation_id"] == erased for row in expected)
    assert update.manifest.rows == sum(pq.read_metadata(path).num_rows for path in files(journal))
    assert update.manifest.read_files == len(files(journal))


def test_old_rows_stay_where_other_files_were_deleted(
    empty_table: OutcomeTable, journal: Path, tmp_path: Path
) -> None:
    """And that is said: to make these hours again would lose what was in the others."""
    empty_table.update(str(journal))
    before = outcomes(empty_table.folder)
    first, last, *_ = files(journal)
    first.unlink()
    empty_table.update(str(journal))
    pq.write_table(pq.read_table(last, partitioning=None).slice(0, 3), last)
    update = empty_table.update(str(journal))
    said = update.replaced[str(last.relative_to(journal))]
    assert "but not" in said and said.endswith("of which files were deleted")
    assert len(outcomes(empty_table.folder)) <= len(before)
    assert empty_table.update(str(journal)).replaced == {}


def test_a_damaged_file_is_remembered(
    empty_table: OutcomeTable, journal: Path, tmp_path: Path
) -> None:
    """It costs a merge once, and is read when it was mended or touched."""
    path = damage(journal)
    name = str(path.relative_to(journal))

    def updated(**options: Any) -> tuple[Update, list[str]]:
        said: list[str] = []
        update = empty_table.update(str(journal), on_progress=said.append, **options)
        return update, [line for line in said if line.startswith("skipped")]

    assert updated()[1] == ["skipped 1 damaged file"]
    update, said = updated()
    assert ([*update.bad], update.new_files, said) == ([name], 0, [])
    assert empty_table.manifest().bad == update.bad
    with pytest.raises(BadFileError, match=path.name):
        updated(on_bad_file=OnBadFile.REFUSE)
    os.utime(path, ns=(0, 0))
    assert updated()[1] == ["skipped 1 damaged file"]
    good = files(journal)[0]
    path.write_bytes(good.read_bytes())
    update, _ = updated()
    assert (update.bad, update.new_files, update.replaced) == ({}, 1, {})
    Run(str(tmp_path), connected()).write_waits()
