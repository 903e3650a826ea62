"""Outcomes that a test gives row by row, and the tables of waits that are made from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.manifest import Hour, hour_file, publish, read_manifest
from purgatory.pipeline.rollups.wait_tables import JOB
from purgatory.pipeline.run import Run
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.pipeline.sql.duck import connected

START = datetime(2026, 11, 20, 6, tzinfo=UTC)


def filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return outcomes of operations that began at START and may wait 100 s unless they say."""
    usual: dict[str, Any] = {"kind": "park", "keys": ["a"], "watched_at": START}
    usual |= {"outcome": "fired", "is_contested": False, "records": 2}
    found = []
    for place, given in enumerate(rows):
        row = usual | {"operation_id": f"op-{place}"} | dict(given)
        row.setdefault("deadline", row["watched_at"] + timedelta(seconds=100))
        row.setdefault("timeout_us", _micros(row["deadline"] - row["watched_at"]))
        if "completed_at" in row:
            row.setdefault("wait_us", _micros(row["completed_at"] - row["watched_at"]))
        found.append({name: row.get(name) for name in OUTCOME_SCHEMA.names})
    return found


def write_outcomes(
    out: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    as_of: datetime,
    starts: Mapping[str, WorkerStart] | None = None,
) -> None:
    """Publish a table of outcomes below `out`, whose other hours stay."""
    folder = LocalFolder(f"{out}/outcomes")
    manifest = read_manifest(folder)
    manifest.run += 1
    run = f"{manifest.run:06d}-test"
    by_hour: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in filled(rows):
        by_hour[f"{row['watched_at']:%Y-%m-%dT%H}"].append(row)
    for name, of_hour in by_hour.items():
        path = folder.local(hour_file(name, run, 0))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(of_hour, OUTCOME_SCHEMA), path)
        open_count = sum(row["outcome"] == "open" for row in of_hour)
        polls = sum("wait" in dict(row["labels"] or ()) for row in of_hour)
        manifest.hours[name] = Hour({run: 1}, 0, len(of_hour), open_count, None, polls)
    manifest.as_of = as_of.isoformat()
    manifest.starts = dict(starts or {})
    publish(folder, manifest)


def waits(out: Path, *names: str) -> list[list[dict[str, Any]]]:
    """Return the rows of tables of waits, made by DuckDB from the outcomes below `out`."""
    run = Run(str(out), connected(threads=1))
    run.write_waits()
    return [run.tables.rows(JOB, name) for name in names]


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
