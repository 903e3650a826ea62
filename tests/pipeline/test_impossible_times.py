"""Times that cannot be, of a clock that was never set or of damaged rows: counted as unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.journal.schema import EVENT_SCHEMA
from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.cli.run import Run
from purgatory.pipeline.rollups import rollups
from purgatory.pipeline.sql import rollups as sql
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.pipeline.rolled import START, waits, write_outcomes

SECOND_US = 1_000_000
START_US = int(START.timestamp()) * SECOND_US
IMPOSSIBLE = {
    "of a machine without a clock": 0,
    "of one with a clock of its own": int(datetime(2016, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US,
    "year 0": -62_167_219_200 * SECOND_US,
    "year 10,000": 253_402_300_800 * SECOND_US,
    "infinity": 2**63 - 1,
    "minus infinity": 1 - 2**63,
}
COLUMNS = ("watched_at", "at", "completed_at", "deadline")


def records(number: int, **end: int) -> list[dict[str, Any]]:
    """Return the two records of an operation of a second; `end` changes the times of its end."""
    start_us = START_US + number * SECOND_US
    row: dict[str, Any] = {
        "operation_id": f"feedfacecafe-{number}",
        "kind": "park",
        "keys": ["a"],
        "worker": "w",
    }
    row |= {"watched_at": start_us, "deadline": start_us + 25 * SECOND_US}
    ended_us = start_us + SECOND_US
    return [
        row | {"event": "watched", "seq": 2 * number + 1, "at": start_us},
        row
        | {"event": "fired", "seq": 2 * number + 2, "at": ended_us, "completed_at": ended_us}
        | end,
    ]


def put(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows, whose times are microseconds since 1970, as a file of the journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = []
    for field in EVENT_SCHEMA:
        is_time = pa.types.is_timestamp(field.type)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        values = [row.get(field.name) for row in rows]
        columns.append(pa.array(values, pa.int64() if is_time else plain).cast(field.type))
    pq.write_table(pa.Table.from_arrays(columns, schema=EVENT_SCHEMA), path)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_impossible_times_are_unknown(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    """In any column, of any kind; they change neither hours nor what is lost."""
    changed = [
        {column: us}
        for name, us in IMPOSSIBLE.items()
        for column in COLUMNS
        # A deadline may be long past.
        if (column, name) not in {("deadline", name) for name in [*IMPOSSIBLE][:2]}
    ]
    rows = [row for number, end in enumerate(changed) for row in records(number, **end)]
    put(tmp_path / "journal" / "w-feedfacecafe-000001.parquet", [*rows, *records(900)])
    runner: Any = DuckRunner(connected(threads=1))
    if engine == "spark":
        runner = request.getfixturevalue("spark")
    table = OutcomeTable(runner, str(tmp_path / "outcomes"))
    update = table.update(str(tmp_path / "journal"))
    assert (update.rows, update.unknown_rows) == (2 * len(changed) + 2, len(changed))
    assert (update.operations, update.future) == (len(changed) + 1, {})
    assert [*update.manifest.hours] == [f"{START:%Y-%m-%dT%H}"]
    assert update.manifest.as_of == (START + timedelta(seconds=901)).isoformat()


def test_days_without_operations_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that waits for years: what is parked then is found in one go."""
    long = {"watched_at": START - timedelta(days=1_000), "completed_at": START}
    write_outcomes(tmp_path, [long, {"completed_at": START}], as_of=START)
    queries = []

    def counted(*arguments: Any) -> str:
        queries.append(arguments)
        return parked(*arguments)

    parked = sql.parked
    monkeypatch.setattr(rollups, "parked", counted)
    (rows,) = waits(tmp_path, "parked")
    assert len(queries) == 1
    assert sum(row["parked_mean"] for row in rows) == pytest.approx(1_000 * 1_440, abs=1)
    assert len(Run(str(tmp_path), connected()).rollups().manifest.days) == 1_001
