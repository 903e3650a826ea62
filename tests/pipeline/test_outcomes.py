"""Outcomes: one row for each operation, whatever the order, the repeats and the delays."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline import NothingToReadError, OutcomeTable, OutputInUseError
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.manifest import (
    FileContent,
    KnownFiles,
    Manifest,
    fingerprint,
    identity,
    publish,
    read_manifest,
    sweep,
)
from purgatory.pipeline.outcomes.outcome_table import DEFAULT_GRACE_S
from purgatory.pipeline.spark.folder import File, LocalFolder
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.pipeline.synthetic import Written, outcomes, write
from tests.synthetic_journal import put

START = datetime(2026, 11, 20, 6, tzinfo=UTC)
COMPARED = "operation_id, kind, worker, watched_at, deadline, outcome, completed_at, wait_us"

# The rule once more, in another language: the first end counts, else the deadline and the journal's
# last word tell lost from open.
EXPECTED = """
WITH ended AS (
    SELECT *, row_number() OVER (PARTITION BY operation_id ORDER BY "at", seq) AS place
    FROM read_parquet('{glob}') WHERE event <> 'watched'
), watched AS (
    SELECT DISTINCT operation_id, kind, worker, watched_at, deadline
    FROM read_parquet('{glob}') WHERE event = 'watched'
), last AS (SELECT max("at") AS "at" FROM read_parquet('{glob}'))
SELECT operation_id, kind, worker, watched_at, deadline, event AS outcome, completed_at,
       epoch_us(completed_at) - epoch_us(watched_at) AS wait_us
FROM ended WHERE place = 1
UNION ALL
SELECT operation_id, kind, worker, watched_at, deadline,
       CASE WHEN epoch_us(deadline) + {grace} * 1000000 < (SELECT epoch_us("at") FROM last)
            THEN 'lost' ELSE 'open' END,
       NULL, NULL
FROM watched WHERE operation_id NOT IN (SELECT operation_id FROM ended)
"""


def difference(duck: duckdb.DuckDBPyConnection, found: Path, expected_glob: str) -> list[Any]:
    """Return the rows that only one of both has."""
    ours = f"SELECT {COMPARED} FROM read_parquet('{found}/date=*/hour=*/*.parquet')"
    theirs = EXPECTED.format(glob=expected_glob, grace=DEFAULT_GRACE_S)
    return duck.execute(
        f"(({ours}) EXCEPT ALL ({theirs})) UNION ALL (({theirs}) EXCEPT ALL ({ours})) LIMIT 5"
    ).fetchall()


def local(table: OutcomeTable) -> Path:
    return Path(table.folder.uri.removeprefix("file:"))


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each file below a folder with its time and size."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def event(number: int, name: str, at_s: float, **more: Any) -> dict[str, Any]:
    """Return a row of the journal: an operation that may wait for ten seconds."""
    at = START + timedelta(seconds=at_s)
    row: dict[str, Any] = {
        "operation_id": f"op-{number}",
        "event": name,
        "seq": number,
        "kind": "park",
        "keys": ["a"],
        "worker": "w",
        "at": at,
        "watched_at": START,
        "deadline": START + timedelta(seconds=10),
        "completed_at": None if name == "watched" else at,
    }
    return row | more


def fold(folder: Path, *parts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the outcomes of a journal that has one part more in each run, by identifier."""
    table = OutcomeTable(DuckRunner(connected(threads=1)), f"{folder}/outcomes")
    for number, rows in enumerate(parts):
        put(folder / "journal" / f"{number}.parquet", *rows)
        table.update(f"{folder}/journal")
    rows = outcomes(table.folder)
    found = {row["operation_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_agrees_with_another_engine(
    table: OutcomeTable, journal: Written, duck: duckdb.DuckDBPyConnection
) -> None:
    """Row by row the table is what DuckDB makes of the same files."""
    assert difference(duck, local(table), journal.glob) == []


def test_agrees_with_what_was_written(table: OutcomeTable, journal: Written) -> None:
    """Counts are those that the generator knows, though records were repeated and dropped."""
    rows = outcomes(table.folder)
    counted = Counter((row["kind"], row["outcome"]) for row in rows)
    for name, kind in journal.truth.kinds.items():
        for outcome in ("fired", "expired", "cancelled", "drained"):
            assert counted[name, outcome] == getattr(kind, outcome)
        silent = counted[name, "lost"] + counted[name, "open"]
        assert silent == kind.unfinished
    assert sum(counted.values()) == journal.truth.operations
    assert sum(row["records"] for row in rows) == journal.truth.rows


def test_running_twice_is_running_once(table: OutcomeTable, journal: Written) -> None:
    """A second run reads no file and touches none."""
    before = contents(local(table))
    update = table.update(str(journal.folder))
    assert (update.new_files, update.known_files) == (0, journal.truth.files)
    assert (update.written_hours, update.operations) == ((), journal.truth.operations)
    assert contents(local(table)) == before


def test_late_records_rewrite_their_hours_only(
    empty_table: OutcomeTable, duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """A file that comes late changes the hours that its operations began in, and no other."""
    written = write(
        tmp_path / "journal", operations=6_000, late_share=0.05, crashes=(1.3,), hours=4.0
    )
    table = empty_table
    first = table.update(str(written.folder))
    hours = [f"2026-11-20T{hour:02d}" for hour in range(6, 10)]
    assert list(first.written_hours) == hours
    last_run = table.manifest().run
    late = sorted(written.journal.deliver_late())
    one, *others = [path for path in late if "hour=08" in str(path)]
    others += [path for path in late if path != one and path not in others]
    for path in others:
        path.rename(path.with_suffix(".later"))
    began = duck.execute(
        f"SELECT DISTINCT epoch_us(watched_at) // 3600000000 % 24 FROM read_parquet('{one}')"
    ).fetchall()
    changed = {f"2026-11-20T{hour:02d}" for (hour,) in began}
    assert 0 < len(changed) < len(hours)
    second = table.update(str(written.folder))
    assert (second.new_files, set(second.written_hours)) == (1, changed)
    runs = {
        name: int(min(hour.runs).partition("-")[0]) for name, hour in table.manifest().hours.items()
    }
    assert runs == {hour: last_run + (hour in changed) for hour in hours}
    for path in others:
        path.with_suffix(".later").rename(path)
    table.update(str(written.folder))
    assert difference(duck, local(table), written.glob) == []
    assert len(set(local(table).rglob("_manifests/*.json"))) == 1


def test_hours_survive_their_journal(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """Files of the journal may be deleted once they are in: late ones are merged all the same."""
    written = write(tmp_path / "journal", operations=2_000, late_share=0.05)
    table = empty_table
    table.update(str(written.folder))
    for path in written.folder.rglob("*.parquet"):
        path.unlink()
    written.journal.deliver_late()
    assert table.update(str(written.folder)).operations == written.truth.operations
    ended = [row for row in outcomes(table.folder) if row["outcome"] not in ("lost", "open")]
    assert len(ended) == sum(written.truth.events.values()) - written.truth.events["watched"]


def test_a_file_that_is_gone_is_forgotten(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """The manifest grows no longer than the journal; a file that comes back changes no outcome."""
    folder, away = tmp_path / "journal", tmp_path / "away"
    written = write(folder / "kept", operations=50, hours=0.1)
    write(folder / "deleted", operations=50, hours=0.1, seed=2)
    table = empty_table
    table.update(str(folder))
    before = [row | {"records": None} for row in outcomes(table.folder)]
    (folder / "deleted").rename(away)
    assert table.update(str(folder)).operations == 100
    manifest = table.manifest()
    assert sum(map(len, manifest.files.values())) == written.truth.files
    assert manifest.read_files == 2 * written.truth.files
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    assert table.update(str(folder)).operations == 100
    assert table.manifest() == manifest
    (tmp_path / "unmounted").rename(folder)
    away.rename(folder / "deleted")
    assert table.update(str(folder)).new_files == written.truth.files
    assert [row | {"records": None} for row in outcomes(table.folder)] == before


def test_the_first_end_counts_else_the_deadline(tmp_path: Path) -> None:
    """In whichever order rows are read; without an end, the grace tells open from lost.

    A wait is zero at least, though a wall clock went back. Rows that are no events are left out.
    """
    rows = [
        event(1, "watched", 0),
        event(1, "expired", 10, seq=3, lateness_us=7),
        event(1, "fired", 5, seq=2, completed_by="a"),
        event(2, "watched", 0),
        event(3, "fired", -5),
        event(4, "watched", 0),
        event(4, "outdated", 3),
        event(5, "exploded", 1),
    ]
    for ordered, as_of_s, silent in ((rows, 909, "open"), (rows[::-1], 911, "lost")):
        found = fold(tmp_path / silent, [*ordered, event(7, "fired", as_of_s)])
        found.pop("op-7")
        assert {name: (row["outcome"], row["wait_us"]) for name, row in found.items()} == {
            "op-1": ("fired", 5_000_000),
            "op-2": (silent, None),
            "op-3": ("fired", 0),
            "op-4": ("outdated", 3_000_000),
        }
        first = found["op-1"]
        assert (first["lateness_us"], first["completed_by"]) == (None, "a")
        assert (first["records"], first["is_contested"]) == (3, True)
        assert (found["op-2"]["completed_at"], found["op-4"]["completed_by"]) == (None, None)


def test_merging_is_the_same_as_folding_at_once(tmp_path: Path) -> None:
    """What is known from before and what is new make what all of it makes."""
    rows = [
        *(event(number, "watched", 0) for number in range(6)),
        *(event(number, "fired", 3, seq=10 + number) for number in range(3)),
        event(7, "cancelled", 4),
        event(2, "drained", 1, seq=20),
        event(8, "fired", 10_000),
    ]
    whole = fold(tmp_path, rows)
    for cut in (2, 7, 9):
        assert fold(tmp_path / f"{cut}", rows[:cut], rows[cut:]) == whole


def test_rows_that_are_no_events_are_counted(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """In a file too: rows of another event, without an identifier or a time, and the rest is read.

    An hour that has no others is not written.
    """
    written = write(tmp_path / "journal", operations=1_000, hours=0.5)
    source = next(written.folder.rglob("*.parquet"))
    rows = pq.read_table(source, partitioning=None).slice(0, 5)
    names = pa.array(["exploded"] * 3 + ["watched"] * 2).cast(
        pa.dictionary(pa.int32(), pa.string())
    )
    identifiers = pa.array([*["a-1"] * 3, None, "a-2"])
    times = pa.array([*rows["at"].to_pylist()[:4], None])
    earlier = pc.subtract(rows["watched_at"], pa.scalar(timedelta(hours=5)))
    for name, column in (
        ("event", names),
        ("operation_id", identifiers),
        ("at", times),
        ("watched_at", earlier),
    ):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, pa.field(name, column.type), column)
    pq.write_table(rows, source.with_name("other.parquet"))
    table = empty_table
    update = table.update(str(written.folder))
    assert (update.rows, update.unknown_rows) == (written.truth.rows + 5, 5)
    assert table.manifest().unknown_rows == 5
    assert update.operations == written.truth.operations
    assert update.written_hours == tuple(table.manifest().hours) == ("2026-11-20T06",)


def test_a_run_that_broke_off_leaves_no_trace(journal: Written, table: OutcomeTable) -> None:
    """What a killed run wrote is in no manifest: readers do not see it, the next run removes it."""
    left = local(table) / "run=000001-killed" / "date=2026-11-20" / "hour=06"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"half")
    moved = local(table) / "date=2026-11-20" / "hour=06" / "000001-killed-0.parquet"
    moved.write_bytes(b"half")
    assert len(outcomes(table.folder)) == journal.truth.operations
    table.update(str(journal.folder))
    assert not left.exists() and not moved.exists()
    assert len(outcomes(table.folder)) == journal.truth.operations


def test_a_manifest_has_a_few_bytes_for_each_file(tmp_path: Path) -> None:
    """A year of a journal's files is a manifest that is read at once, and it knows every one."""
    folder = LocalFolder(str(tmp_path))
    files: KnownFiles = {}
    paths = [
        File(f"date=2026-11-{day:02d}/hour={hour:02d}/{number:06d}.parquet", 1_000, number)
        for day, hour, number in product(range(1, 21), range(24), range(50))
    ]
    content = FileContent(fingerprint(b"name"), fingerprint(b"footer"), 1_000, 498_000, 498_001)
    assert FileContent.of(str(content)) == content
    for file in paths:
        of_folder, place = identity(file)
        files.setdefault(of_folder, {})[place] = str(content)
    assert sum(map(len, files.values())) == len(paths)
    manifest = Manifest(run=1, files=files)
    publish(folder, manifest)
    assert len(folder.read_text("_manifests/000001.json")) < 56 * len(paths)
    assert read_manifest(folder) == manifest
    path = paths[0].path
    changed = [File(path, 1_001, 0), File(path, 1_000, 1), File(f"{path}.parquet", 1_000, 0)]
    assert len({*map(identity, [paths[0], *changed])}) == 4


def test_a_manifest_of_another_release_is_named(tmp_path: Path) -> None:
    """With both versions, and not as a broken file: nobody is told to delete it."""
    folder = LocalFolder(str(tmp_path))
    folder.write_new("_manifests/000001.json", '{"version": 999, "more": []}')
    with pytest.raises(PipelineError, match="is of version 999, and this release knows"):
        read_manifest(folder)


def test_two_runs_at_once_do_not_both_publish(tmp_path: Path) -> None:
    """The second to publish is told, and changes nothing."""
    folder = LocalFolder(str(tmp_path))
    folder.write_new("_manifests/000001.json", "first")
    with pytest.raises(OutputInUseError, match=r"000001\.json .*run this one again"):
        folder.write_new("_manifests/000001.json", "second")
    assert folder.read_text("_manifests/000001.json") == "first"
    assert folder.names("_manifests") == ["000001.json"]


def test_a_run_that_was_overtaken_spoils_nothing(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """It knew less of the journal than the one that published: nothing of that one's is lost.

    In folders whose names Spark would take for patterns.
    """
    folder = tmp_path / "journal [1]"
    first = write(folder / "{first,1st}", operations=50, hours=0.1)
    table = OutcomeTable(empty_table.runner, str(tmp_path / "outcomes [of] *?"))
    truths = [first.truth]

    def overtake(line: str) -> None:
        if "writing" in line and len(truths) == 1:
            truths.append(write(folder / "second", operations=50, hours=0.1, seed=2).truth)
            table.update(str(folder))

    with pytest.raises(OutputInUseError, match="run this one again"):
        table.update(str(folder), on_progress=overtake)
    both = sum(truth.operations for truth in truths)
    assert len(outcomes(table.folder)) == both
    assert table.update(str(folder)).operations == both
    assert not [*local(table).glob("run=*")]
    assert len({path.name for path in local(table).rglob("*.parquet")}) == 1


def test_what_another_run_writes_is_left_alone(tmp_path: Path) -> None:
    """Until something newer is published: then nobody can publish it any more."""
    folder = LocalFolder(str(tmp_path))
    written = tmp_path / "run=000002-a" / "date=2026-11-20" / "hour=06"
    written.mkdir(parents=True)
    sweep(folder, Manifest(run=1))
    assert written.exists()
    sweep(folder, Manifest(run=2))
    assert not written.exists()


def test_a_journal_may_be_emptied_but_not_be_missing(
    empty_table: OutcomeTable, tmp_path: Path
) -> None:
    """Of a folder that was mistyped or deleted, the earlier outcomes would be taken for its own."""
    written = write(tmp_path / "journal", operations=50, hours=0.1)
    empty_table.update(str(written.folder))
    emptied = tmp_path / "emptied"
    emptied.mkdir()
    assert empty_table.update(str(emptied)).operations == written.truth.operations
    with pytest.raises(NothingToReadError, match="nowhere: there is no such folder"):
        empty_table.update(str(tmp_path / "nowhere"))


def test_nothing_to_read_is_said(empty_table: OutcomeTable, tmp_path: Path) -> None:
    """A folder without a journal, and one without outcomes, are named."""
    table = empty_table
    with pytest.raises(NothingToReadError, match=f"No journal in {tmp_path}/nowhere"):
        table.update(str(tmp_path / "nowhere"))
    with pytest.raises(NothingToReadError, match="run the job `outcomes`"):
        table.published()
