"""Times that cannot be, of a clock that was never set or of damaged rows: counted as unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.rollups import rollups
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql import rollups as sql
from purgatory.pipeline.sql.duck import connected
from tests.pipeline.rolled import START, waits, write_outcomes
from tests.synthetic_journal import put

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


# An operation for each time in each column; but a deadline may be long past.
PLANTED = [
    record
    for number, (column, name) in enumerate(
        (column, name)
        for name in IMPOSSIBLE
        for column in COLUMNS
        if (column, name) not in {("deadline", name) for name in [*IMPOSSIBLE][:2]}
    )
    for record in records(number, **{column: IMPOSSIBLE[name]})
]


def test_impossible_times_are_unknown(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """In any column, of any kind; they change neither hours nor what is lost."""
    put(tmp_path / "journal" / "w-feedfacecafe-000001.parquet", *PLANTED, *records(900))
    update = empty_table.update(str(tmp_path / "journal"))
    count = len(PLANTED) // 2
    assert (update.rows, update.unknown_rows) == (2 * count + 2, count)
    assert (update.operations, update.future) == (count + 1, {})
    assert [*update.manifest.hours] == [f"{START:%Y-%m-%dT%H}"]
    assert update.manifest.as_of == (START + timedelta(seconds=901)).isoformat()


def test_days_without_operations_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that waits for months: what is parked then is found in one go."""
    long = {"watched_at": START - timedelta(days=100), "completed_at": START}
    write_outcomes(tmp_path, [long, {"completed_at": START}], as_of=START)
    queries = []

    def counted(*arguments: Any) -> str:
        queries.append(arguments)
        return parked(*arguments)

    parked = sql.parked
    monkeypatch.setattr(rollups, "parked", counted)
    (rows,) = waits(tmp_path, "parked")
    assert len(queries) == 1
    assert sum(row["parked_mean"] for row in rows) == pytest.approx(100 * 1_440, abs=1)
    assert len(Run(str(tmp_path), connected()).rollups().manifest.days) == 101
