"""What the journal does not have: gaps in the numbers of records, and sampled kinds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal.schema import EVENT_SCHEMA, SAMPLE_KEY
from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.journal_files import sampling_of
from purgatory.pipeline.outcomes.manifest import Manifest, missing_records

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


def put(path: Path, rows: list[dict[str, Any]], sample: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)
    if sample is not None:
        metadata = {**(EVENT_SCHEMA.metadata or {}), SAMPLE_KEY: sample}
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path)


def test_gaps_and_samples_are_known(spark: SparkSession, tmp_path: Path) -> None:
    """Over several runs; records of jobs, which have numbers too, are no gaps."""
    one, two = "00000000000a", "00000000000b"
    folder = tmp_path / "journal"
    first = [row(one, seq) for seq in (1, 2, 3, 7)] + [row(one, 5, "job:mail")]
    put(folder / "1.parquet", first, b'{"park": 0.5, "job:mail": 1}')
    table = OutcomeTable(spark, str(tmp_path / "outcomes"))
    table.update(str(folder))
    # 4 and 6 are missing.
    assert missing_records(table.manifest()) == {f"worker of {one}": 2}
    put(folder / "2.parquet", [row(one, 6), *(row(two, seq) for seq in (1, 2))], b'{"park": 0.1}')
    table.update(str(folder))
    manifest = table.manifest()
    assert missing_records(manifest) == {f"worker of {one}": 1}
    assert manifest.sampling == {"park": 0.1}
    assert manifest.starts[one].last_at == (START + timedelta(seconds=7)).isoformat()
    put(folder / "3.parquet", [row(two, 3)], b'{"park": 2}')
    assert "purgatory.sample" in table.update(str(folder)).bad["3.parquet"]


def test_a_repeated_record_is_no_gap() -> None:
    """It hides one at most, and never makes a negative count."""
    start = WorkerStart("w", records=9, first_seq=1, last_seq=5, last_at=START.isoformat())
    assert missing_records(Manifest(starts={"a": start})) == {}


@pytest.mark.parametrize("text", ["[]", '{"park": "0.1"}', '{"park": -1}', "park"])
def test_shares_that_are_none_are_refused(text: str) -> None:
    """As those of a file that the journal did not write."""
    with pytest.raises(ValueError, match=r"purgatory\.sample|Expecting value"):
        sampling_of(text)
