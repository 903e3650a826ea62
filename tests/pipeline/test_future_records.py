"""Records dated in the future: one wrong clock changes no other operation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.outcomes.update_run import Update
from tests.pipeline.synthetic import outcomes
from tests.synthetic_journal import put

NOW = datetime(2026, 11, 20, 6, tzinfo=UTC)
FAR = datetime(2099, 1, 1, tzinfo=UTC)
WAITING = 20


def event(
    name: str, what: str, watched: datetime, at: datetime | None = None, worker: str = "right"
) -> dict[str, Any]:
    """An operation with a timeout of five minutes."""
    at = at or watched
    return {
        "operation_id": name,
        "event": what,
        "seq": 1,
        "kind": "park",
        "keys": ["a"],
        "worker": worker,
        "at": at,
        "watched_at": watched,
        "deadline": watched + timedelta(minutes=5),
        "completed_at": None if what == "watched" else at,
    }


def outcomes_of(table: OutcomeTable) -> dict[str, str]:
    return {row["operation_id"]: row["outcome"] for row in outcomes(table.folder)}


def update(table: OutcomeTable, journal: Path, now: datetime = NOW, **options: Any) -> Update:
    return table.update(str(journal), now=now, **options)


def waiting() -> list[dict[str, Any]]:
    started = NOW - timedelta(minutes=1)
    return [event(f"op-{number}", "watched", started) for number in range(WAITING)]


def test_one_wrong_clock_makes_nothing_lost(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """Neither a start nor an end of the year 2099 is believed; both are named by worker."""
    journal, table = tmp_path / "journal", empty_table
    put(
        journal / "1.parquet",
        *waiting(),
        event("op-0", "fired", NOW - timedelta(minutes=1), FAR, worker="ahead"),
        event("op-x", "watched", FAR, worker="far ahead"),
    )
    found = update(table, journal)
    assert outcomes_of(table) == {f"op-{number}": "open" for number in range(WAITING)}
    assert all(row["wait_us"] is None for row in outcomes(table.folder))
    assert {worker: future.records for worker, future in found.future.items()} == {
        "ahead": 1,
        "far ahead": 1,
    }
    assert found.future["ahead"].last == FAR.isoformat()
    assert (found.rows, found.unknown_rows) == (WAITING + 2, 0)
    assert table.manifest().as_of_time() == NOW - timedelta(minutes=1)
    # Nothing new: nothing is written, and nothing is forgotten.
    again = update(table, journal)
    assert (again.future, again.written_hours, table.manifest().run) == (found.future, (), 1)


def test_what_was_early_is_merged_when_its_time_has_come(
    empty_table: OutcomeTable, tmp_path: Path
) -> None:
    """A clock that is ten minutes ahead loses nothing; the journal's files may be deleted."""
    journal, table = tmp_path / "journal", empty_table
    early = NOW + timedelta(minutes=10)
    put(
        journal / "1.parquet",
        *waiting(),
        event("op-0", "fired", NOW - timedelta(minutes=1), early, worker="ahead"),
        event("op-1", "fired", NOW - timedelta(minutes=1), FAR, worker="ahead"),
    )
    assert update(table, journal).future["ahead"].records == 2
    put(journal / "2.parquet", event("op-2", "cancelled", NOW - timedelta(minutes=1), NOW))
    later = update(table, journal, NOW + timedelta(minutes=6))
    assert later.future["ahead"].records == 1
    assert later.unknown_rows == 0
    found = outcomes_of(table)
    assert (found["op-0"], found["op-1"], found["op-2"]) == ("fired", "open", "cancelled")
    assert table.manifest().as_of_time() == early
    # With a larger tolerance all is believed.
    assert update(table, journal, FAR).future == {}
    assert outcomes_of(table)["op-1"] == "fired"
    assert not list((tmp_path / "outcomes").glob("future=*"))


def test_a_table_that_believed_it_is_repaired(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """By the next run, without the journal's files."""
    journal, table = tmp_path / "journal", empty_table
    put(
        journal / "1.parquet",
        *waiting(),
        event("op-0", "fired", NOW - timedelta(minutes=1), FAR, worker="ahead"),
        event("op-x", "watched", FAR, worker="ahead"),
    )
    # As if this machine's clock had been in the year 2099.
    update(table, journal, FAR)
    assert outcomes_of(table)["op-1"] == "lost"
    for file in journal.rglob("*.parquet"):
        file.unlink()
    found = update(table, journal)
    assert found.is_repaired
    assert outcomes_of(table) == {f"op-{number}": "open" for number in range(WAITING)}
    assert found.future["ahead"].records == 2
    assert table.manifest().as_of_time() == NOW - timedelta(minutes=1)
    assert not update(table, journal).is_repaired
    # And what was set aside is not lost.
    update(table, journal, FAR)
    assert outcomes_of(table)["op-0"] == "fired"


def test_the_command_and_the_report_name_the_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the count, the time, and what is wrong."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    put(journal / "1.parquet", *waiting(), event("op-0", "fired", NOW, FAR, worker="ahead"))
    assert main(["report", "--journal", str(journal), "--out", str(out), "--engine", "duckdb"]) == 0
    said = capsys.readouterr().out
    assert "Records dated in the future, set aside until then: 1." in said
    assert "  ahead: 1 record, up to 2099-01-01T00:00:00+00:00" in said
    page = (out / "report" / "report.html").read_text()
    assert "1 record is dated in the future" in page and "ahead (1, up to 2099-01-01" in page
