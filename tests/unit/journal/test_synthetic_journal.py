"""What the generated journals say of themselves, by DuckDB over the same files."""

from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow.parquet as pq
import pytest

from purgatory.journal.schema import EVENT_SCHEMA, SCHEMA_VERSION, VERSION_KEY
from tests.synthetic_journal import Fault, SyntheticJournal, inject

DIFFERENT = """
    with different as (
        select distinct on (operation_id, event) *, "at" - watched_at as wait
        from read_parquet('{}/**/*.parquet')
    )
"""


def ask(directory: Path, question: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(DIFFERENT.format(directory) + question).fetchall()


def test_the_truth_is_what_is_in_the_files(tmp_path: Path) -> None:
    """Operations, outcomes, exact waits, keys and repeats are those that the generator states."""
    journal = SyntheticJournal(
        operations=20_000,
        drains=(1,),
        crashes=(2,),
        crash_loses_seconds=5,
        dropped_share=0.01,
        duplicate_share=0.02,
        late_share=0.03,
        shuffled=True,
        rows_per_file=8_000,
    )
    truth = journal.write(tmp_path)
    assert journal.deliver_late()
    found = ask(
        tmp_path,
        """select kind, count(distinct operation_id),
            count(*) filter (event = 'fired'), count(*) filter (event = 'expired'),
            count(*) filter (event = 'cancelled'), count(*) filter (event = 'drained'),
            quantile_cont(epoch_us(wait), 0.9) filter (event = 'fired'),
            quantile_cont(lateness_us, 0.5)
        from different group by kind order by kind""",
    )
    assert found == [
        (
            *(name, kind.operations, kind.fired, kind.expired, kind.cancelled, kind.drained),
            pytest.approx(kind.fired_wait_quantile_us(0.9)),
            pytest.approx(kind.lateness_quantile_us(0.5)),
        )
        for name, kind in sorted(truth.kinds.items())
    ]
    [(rows,)] = ask(tmp_path, f"select count(*) from read_parquet('{tmp_path}/**/*.parquet')")
    assert rows == truth.rows == sum(truth.events.values()) + truth.repeated_rows
    keys = ask(tmp_path, "select keys[1], count(distinct operation_id) from different group by all")
    counted: dict[str, int] = {}
    for kind in truth.kinds.values():
        for key, count in kind.key_counts.items():
            counted[key] = counted.get(key, 0) + count
    assert dict(keys) == counted
    assert sum(kind.unfinished for kind in truth.kinds.values()) > 0


def test_every_row_lies_in_the_partition_of_its_hour(tmp_path: Path) -> None:
    """The folders are those of `at` in UTC, and their counts are the stated ones."""
    truth = SyntheticJournal(operations=5_000).write(tmp_path)
    found = ask(
        tmp_path,
        """select 'date=' || strftime("at" at time zone 'UTC', '%Y-%m-%d')
            || '/hour=' || strftime("at" at time zone 'UTC', '%H'), count(*)
        from different group by 1""",
    )
    assert dict(found) == truth.hours
    assert set(truth.hours) == {
        str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")
    }


def test_the_same_arguments_write_the_same_journal(tmp_path: Path) -> None:
    """Nothing in it depends on when or where it is written."""
    tables = []
    for name in ("a", "b"):
        SyntheticJournal(operations=3_000, shuffled=True).write(tmp_path / name)
        tables.append(pq.read_table(tmp_path / name))
    assert tables[0].equals(tables[1])


def test_files_have_the_schema_and_its_version(tmp_path: Path) -> None:
    """Columns, types and metadata are those of a journal."""
    SyntheticJournal(operations=1_000).write(tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        schema = pq.read_schema(path)
        assert schema.equals(EVENT_SCHEMA)
        assert schema.metadata[VERSION_KEY].decode() == SCHEMA_VERSION


@pytest.mark.parametrize("fault", get_args(Fault))
def test_a_fault_is_one_file_more(fault: Fault, tmp_path: Path) -> None:
    """It stands beside a good file, and no other file changes."""
    SyntheticJournal(operations=1_000).write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    path = inject(tmp_path, fault)
    assert path.is_file() and path not in before
    assert all(path.read_bytes() == content for path, content in before.items())
