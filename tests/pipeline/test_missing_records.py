"""What the journal does not have: gaps in the numbers of records, and sampled kinds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.outcomes.event_summary import (
    BLOCK,
    WorkerStart,
    joined,
    merged_starts,
    starts_of_rows,
)
from purgatory.pipeline.outcomes.journal_files import sampling_of
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.synthetic_journal import put

START = datetime(2026, 11, 20, 6, tzinfo=UTC)


def row(start: str, seq: int, kind: str = "park") -> dict[str, Any]:
    at = START + timedelta(seconds=seq)
    name = f"job:{seq}" if kind.startswith("job:") else f"{start}-{seq}"
    return {
        "operation_id": name,
        "event": "watched",
        "seq": seq,
        "kind": kind,
        "keys": ["a"],
        "worker": f"worker of {start}",
        "at": at,
        "watched_at": at,
        "deadline": at + timedelta(seconds=10),
    }


def test_gaps_and_samples_are_known(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """Over several runs; records of jobs, which have numbers too, are no gaps."""
    one, two = "00000000000a", "00000000000b"
    folder = tmp_path / "journal"
    first = [row(one, seq) for seq in (1, 2, 3, 7)] + [row(one, 5, "job:mail")]
    put(folder / "1.parquet", *first, sample=b'{"park": 0.5, "job:mail": 1}')
    empty_table.update(str(folder))
    # 4 and 6 are missing.
    assert missing_records(empty_table.manifest()) == {f"worker of {one}": 2}
    # Its name says whose job it was, and records that were read do not hide others.
    again = [row(one, seq) for seq in (1, 2, 3, 6)]
    job = [row("another", 9, "job:mail") | {"worker": f"worker of {one}"}]
    put(folder / f"w-{one}-000002.parquet", *again, *job)
    put(folder / "2.parquet", *[row(two, seq) for seq in (1, 2)], sample=b'{"park": 0.1}')
    empty_table.update(str(folder))
    manifest = empty_table.manifest()
    # 4 and 8: the first is missing, or the job's of an unknown start.
    assert manifest.starts[one].seen == [[1, 3], [6, 7], [9, 9]]
    assert missing_records(manifest) == {f"worker of {one}": 2}
    assert manifest.sampling == {"park": 0.1}
    assert manifest.starts[one].last_at == (START + timedelta(seconds=9)).isoformat()
    put(folder / "3.parquet", row(two, 3), sample=b'{"park": 2}')
    assert "purgatory.sample" in empty_table.update(str(folder)).bad["3.parquet"]


@given(
    st.lists(st.frozensets(st.integers(1, 400), min_size=1, max_size=300), min_size=1, max_size=4)
)
def test_gaps_are_of_numbers_that_no_record_has(parts: list[frozenset[int]]) -> None:
    """Whatever is repeated, within a run or in later ones, and in whatever order they come."""
    at_us = int(START.timestamp()) * 1_000_000
    starts: dict[str, WorkerStart] = {}
    for part in parts:
        blocks: dict[int, int] = {}
        for seq in part:
            blocks[seq // BLOCK] = blocks.get(seq // BLOCK, 0) | 1 << seq % BLOCK
        rows = [
            {"worker": "w", "start_id": "a", "bits": bits, "first_us": at_us, "last_us": at_us}
            | {"first_block": block, "last_block": block}
            for block, bits in blocks.items()
        ]
        found, jobs = starts_of_rows(rows)
        starts = merged_starts(starts, found)
        assert not jobs
    seen = frozenset().union(*parts)
    (start,) = starts.values()
    assert start.missing == max(seen) - min(seen) + 1 - len(seen)
    assert start.seen == joined([(seq, seq) for seq in seen])


def test_jobs_of_several_starts_are_no_gaps(tmp_path: Path) -> None:
    """Though no file says whose they were, and their numbers are the same."""
    rows = []
    for start in ("00000000000a", "00000000000b"):
        of_start = [row(start, 1), row(start, 2, "job:mail"), row(start, 3)]
        rows += [of_row | {"worker": "w"} for of_row in of_start]
    put(tmp_path / "journal" / "1.parquet", *rows)
    table = OutcomeTable(DuckRunner(connected(threads=1)), str(tmp_path / "outcomes"))
    table.update(str(tmp_path / "journal"))
    assert missing_records(table.manifest()) == {}


def test_a_wrong_number_is_no_gap(tmp_path: Path) -> None:
    """A number that no worker reaches by then is wrong itself; starts have names of any length."""
    start = "0123456789abcdef"
    rows = [row(start, seq) for seq in range(1, 1_001) if not 100 <= seq < 600]
    rows[-1]["seq"] = 2**40
    put(tmp_path / "journal" / "1.parquet", *rows)
    table = OutcomeTable(DuckRunner(connected(threads=1)), str(tmp_path / "outcomes"))
    table.update(str(tmp_path / "journal"))
    assert missing_records(table.manifest()) == {f"worker of {start}": 500}


def test_many_gaps_are_only_counted() -> None:
    """A manifest does not grow with them."""
    at = START.isoformat()
    start = WorkerStart("w", at, at).merged(
        WorkerStart("w", at, at, [[seq, seq] for seq in range(1, 10_000, 2)])
    )
    assert (len(start.seen), start.missing, start.seen[0]) == (1_000, 4_999, [1, 8_001])
    assert start.merged(WorkerStart("w", at, at, [[7, 9]])).missing == 4_999


def test_a_late_file_fills_its_gap_and_one_that_is_read_again_opens_none() -> None:
    """However many small gaps there are besides."""
    at = START.isoformat()
    late = range(4_001, 6_000, 2)
    first = [seq for seq in range(1, 10_000, 2) if seq not in late]
    known: dict[str, WorkerStart] = {}
    for numbers, missing in ((first, 5_999), (first, 5_999), (late, 4_999), (late, 4_999)):
        start = WorkerStart("w", at, at, [[seq, seq] for seq in numbers])
        known = merged_starts(known, {"a": start})
        assert known["a"].missing == missing
        assert len(known["a"].seen) <= 1_000


@pytest.mark.parametrize("text", ["[]", '{"park": "0.1"}', '{"park": -1}', "park"])
def test_shares_that_are_none_are_refused(text: str) -> None:
    """As those of a file that the journal did not write."""
    with pytest.raises(ValueError, match=r"purgatory\.sample|Expecting value"):
        sampling_of(text)
