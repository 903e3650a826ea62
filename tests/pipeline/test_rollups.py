"""Rollups: what a run aggregates again, and tables that do not show in how many runs they grew."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.errors import NothingToReadError, OutputInUseError
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.manifest import publish
from purgatory.pipeline.rollups import rollups
from purgatory.pipeline.rollups.rollup_files import (
    ALL,
    KEPT_KEYS,
    KEPT_PREFIXES,
    Part,
    read_rollup_manifest,
)
from purgatory.pipeline.rollups.rollups import NODES, RollupRun, make_starts
from purgatory.pipeline.rollups.wait_tables import write_waits
from purgatory.pipeline.run import Run
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.pipeline.sql.duck import connected, parquet
from purgatory.pipeline.sql.outcomes import waits_of
from purgatory.pipeline.sql.spark import frame, hour_rows
from purgatory.pipeline.statistics import COARSE, bucket
from tests.nightly import by_night
from tests.pipeline.rolled import START, waits, write_outcomes
from tests.pipeline.synthetic import TABLES, write

LATER = START + timedelta(days=9)


def ended(at: datetime, seconds: float, **given: Any) -> dict[str, Any]:
    """Return an operation that began to wait at a time and fired after so many seconds."""
    return {"watched_at": at, "completed_at": at + timedelta(seconds=seconds)} | given


def rollup_runs(out: Path) -> dict[str, str]:
    """Return the run that wrote the rollup of each hour."""
    manifest = read_rollup_manifest(LocalFolder(f"{out}/rollups"))
    return {name: hour.runs[-1] for name, hour in manifest.hours.items()}


def test_a_run_aggregates_only_what_changed(tmp_path: Path) -> None:
    """Of a new hour after months: that hour. The tables are those of one run over everything."""
    starts = [START + timedelta(days=31 * month) for month in range(4)]
    rows = [ended(at, 90, keys=[f"order:{at.month}"]) for at in starts]
    new = ended(starts[-1] + timedelta(hours=18), 8 * 3600, operation_id="op-new")
    write_outcomes(tmp_path / "grown", rows, as_of=LATER)
    waits(tmp_path / "grown")
    before = rollup_runs(tmp_path / "grown")
    write_outcomes(tmp_path / "grown", [new], as_of=LATER)
    grown = waits(tmp_path / "grown", *TABLES)
    after = rollup_runs(tmp_path / "grown")
    assert len(after) == len(before) + 1
    assert {name: run for name, run in after.items() if name in before} == before
    write_outcomes(tmp_path / "once", [*rows, new], as_of=LATER)
    assert grown == waits(tmp_path / "once", *TABLES)
    runs = {path.name for path in (tmp_path / "grown" / "rollups").glob("run=*")}
    assert {f"run={run}" for run in after.values()} <= runs
    waits(tmp_path / "grown")
    assert rollup_runs(tmp_path / "grown") == after


def test_tables_are_those_of_one_run_whatever_settled_between(tmp_path: Path) -> None:
    """Days and months in prefixes, a late record in one of them, and a day that follows."""
    days = (0, 1, 2, 2, 3, 12, 13, 1, 13, 14)
    rows = [
        ended(START + timedelta(days=day, minutes=place), 40 * 60, keys=[f"order:{place % 3}"])
        | {"operation_id": f"op-{place}", "state": "failed", "error": f"{place}"}
        for place, day in enumerate(days)
    ]
    # Before and after the late record, and when the day that follows has settled it.
    compared = by_night(range(len(rows)), (6, 7, len(rows) - 1))
    for place, row in enumerate(rows):
        # With what is written of an hour, it is replaced.
        hour = [other for other in rows[:place] if _hour(other) == _hour(row)]
        write_outcomes(tmp_path / "grown", [*hour, row], as_of=LATER)
        grown = waits(tmp_path / "grown", *TABLES)
        if place in compared:
            write_outcomes(tmp_path / f"once-{place}", rows[: place + 1], as_of=LATER)
            assert grown == waits(tmp_path / f"once-{place}", *TABLES)
    for out in (tmp_path / "grown", tmp_path / f"once-{len(rows) - 1}"):
        (found,) = Run(str(out), connected(threads=1)).failed_jobs()
        assert (found["jobs"], found["error"]) == (len(rows), f"{len(rows) - 1}")
    assert read_rollup_manifest(LocalFolder(f"{tmp_path}/grown/rollups")).prefixes


def test_a_long_wait_does_not_make_the_steps_of_the_timeline_longer(tmp_path: Path) -> None:
    """They follow from when waits began; months in which none did are in the prefix of all."""
    rows = [
        ended(START + timedelta(days=day), 3_600, operation_id=f"op-{day}") for day in (0, 46, 47)
    ]
    rows.append(ended(START, 150 * 86_400, operation_id="op-long", kind="job:remind"))
    later = START + timedelta(days=400)
    # Not the minutes of five months.
    names = [name for name in TABLES if name != "parked"]
    for new in ([rows[0], rows[1], rows[3]], [rows[2]]):
        write_outcomes(tmp_path / "grown", new, as_of=later)
        grown = waits(tmp_path / "grown", *names)
    write_outcomes(tmp_path / "once", rows, as_of=later)
    assert grown == waits(tmp_path / "once", *names)
    manifest = read_rollup_manifest(LocalFolder(f"{tmp_path}/grown/rollups"))
    assert len(manifest.prefixes[ALL].members) > 4
    assert {row["width_s"] for row in grown[names.index("timeline")]} == {21_600}


def _hour(row: dict[str, Any]) -> datetime:
    at: datetime = row["watched_at"]
    return at.replace(minute=0)


def test_what_was_replaced_is_deleted(tmp_path: Path) -> None:
    """Each run merges its day and month again: those before it are not kept with its hour."""
    for number in range(3):
        at = START + timedelta(hours=number)
        row = ended(at, 60, operation_id=f"op-{number}")
        write_outcomes(tmp_path, [row], as_of=at + timedelta(minutes=2))
        waits(tmp_path)
    rollups = tmp_path / "rollups"
    files = [path.relative_to(rollups).parts for path in rollups.rglob("*.parquet")]
    kinds = Counter("/".join(parts[1:-2]) for parts in files)
    nodes = [f"{period}/{node}" for period in ("days", "months") for node in NODES]
    assert kinds == {"hours": 3, **dict.fromkeys(nodes, 1)}


class Recorded:
    """A connection, and the statements that it was given."""

    def __init__(self) -> None:
        self.connection, self.statements = connected(threads=1), list[str]()

    def execute(self, statement: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
        self.statements.append(statement)
        return self.connection.execute(statement, parameters)


def test_outcomes_of_an_hour_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever parts of its rollup, of which there are a dozen; then they are forgotten."""
    monkeypatch.setattr(rollups, "_OPERATIONS", 1)
    rows = [ended(START + timedelta(hours=place), 1) for place in range(2)]
    write_outcomes(tmp_path, rows, as_of=LATER)
    recorded = Recorded()
    before = read_rollup_manifest(LocalFolder(f"{tmp_path}/rollups"))
    table = Run(str(tmp_path), recorded.connection).outcomes
    folder = LocalFolder(f"{tmp_path}/rollups")
    places = (recorded, folder, table.folder, table.manifest(), lambda _: None, before)
    RollupRun(*places).update()  # type: ignore[arg-type] # as much as is used
    reads = [statement for statement in recorded.statements if "outcomes/date=" in statement]
    assert len(reads) == len(rows)
    assert all(statement.count("read_parquet") == 1 for statement in reads)
    assert (
        recorded.connection.execute("SELECT * FROM duckdb_views() WHERE NOT internal").fetchall()
        == []
    )
    assert recorded.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [
        ("rollup_starts",)
    ]


def test_starts_of_workers_are_parameters() -> None:
    """As literals of a statement, the starts of a year took longer than all else to parse."""
    found: list[list[str]] = []
    for count in (0, 1_000):
        recorded = Recorded()
        start = WorkerStart("w", START.isoformat(), START.isoformat())
        starts = {f"{at:012x}": start for at in range(count)}
        make_starts(recorded, starts)  # type: ignore[arg-type] # as much as is used
        rows = recorded.connection.execute("FROM rollup_starts").fetchall()
        assert len(rows) == count
        assert all(row[1] for row in rows)
        found.append(recorded.statements)
    assert found[0] == found[1]


def test_an_hour_that_is_gone_leaves_the_tables(tmp_path: Path) -> None:
    """As after a repair: its days and months are merged without it."""
    rows = [ended(START, 5), ended(START + timedelta(days=40), 5, operation_id="op-x")]
    write_outcomes(tmp_path, rows, as_of=LATER)
    waits(tmp_path)
    table = Run(str(tmp_path), connected(threads=1)).outcomes
    manifest = table.manifest()
    manifest.run += 1
    manifest.hours.pop(f"{START + timedelta(days=40):%Y-%m-%dT%H}")
    publish(table.folder, manifest)
    by_kind, parked = waits(tmp_path, "by_kind", "parked")
    assert [row["operations"] for row in by_kind] == [1]
    assert {row["minute"] for row in parked} == {START}


def test_percentiles_are_within_a_five_hundredth(
    tmp_path: Path, table: OutcomeTable, duck_outcomes: duckdb.DuckDBPyConnection
) -> None:
    """Of the value that sorting finds; counts, means and maxima are exact."""
    folder = LocalFolder(str(tmp_path / "rollups"))
    before = read_rollup_manifest(folder)
    run = RollupRun(connected(), folder, table.folder, table.manifest(), lambda _: None, before)
    tables = Run(str(tmp_path)).tables
    write_waits(connected(), run.update(), tables, lambda _: None)
    rows = {row["kind"]: row for row in tables.rows("waits", "by_kind")}
    sorted_ones = duck_outcomes.execute(
        """
        SELECT kind, count(*), max(wait_us), sum(wait_us) / count(wait_us),
               quantile_disc(wait_us, [0.5, 0.9, 0.95, 0.99, 0.999]),
               quantile_disc(lateness_us, [0.5, 0.9, 0.95, 0.99, 0.999]),
               quantile_disc(timeout_us, [0.5, 0.9, 0.95, 0.99, 0.999])
        FROM outcomes GROUP BY kind
        """
    ).fetchall()
    assert len(sorted_ones) == len(rows)
    for kind, count, most, mean, *percentiles in sorted_ones:
        row = rows[kind]
        assert (row["operations"], row["wait_us_max"], row["wait_us_mean"]) == (count, most, mean)
        measures = ("wait_us", "lateness_us", "timeout_us")
        for measure, values in zip(measures, percentiles, strict=True):
            # None if none expired.
            names = ("p50", "p90", "p95", "p99", "p99_9") if values else ()
            for name, value in zip(names, values or (), strict=True):
                assert abs(row[f"{measure}_{name}"] - value) <= value / 512


def test_few_values_have_exact_percentiles(tmp_path: Path) -> None:
    """A bucket with one value, or two, is no loss."""
    rows = [ended(START, seconds) for seconds in (1.000001, 1.000003, 7.5)]
    write_outcomes(tmp_path, rows, as_of=LATER)
    ((row,),) = waits(tmp_path, "by_kind")
    assert (row["wait_us_p50"], row["wait_us_p99"]) == (1_000_003, 7_500_000)
    assert row["timeout_us_p50"] == 100_000_000


def test_parked_over_days_of_silence(tmp_path: Path) -> None:
    """An operation that waits for days is in each minute between; nothing is, after it."""
    end = START + timedelta(days=2, seconds=30)
    rows = [
        ended(START, (end - START).total_seconds()),
        ended(end + timedelta(days=3), 0, operation_id="op-late"),
    ]
    write_outcomes(tmp_path, rows, as_of=LATER)
    ((parked),) = waits(tmp_path, "parked")
    assert len(parked) == 2 * 24 * 60 + 2
    levels = [row["parked_mean"] for row in sorted(parked, key=lambda row: row["minute"])]
    assert levels[1:-2] == [1.0] * (2 * 24 * 60 - 1)
    assert [levels[0], levels[-2], levels[-1]] == pytest.approx([59 / 60, 31 / 60, 0])


def test_what_never_ended_is_censored_until_now(tmp_path: Path) -> None:
    """Later runs count the wait until then, and none after the deadline."""
    rows = [{"outcome": "open"}, {"outcome": "lost"}, ended(START, 0.001)]
    for micros, found in ((200, 200), (90_000_000, bucket(90_000_000)), (700_000_000, None)):
        write_outcomes(tmp_path, rows, as_of=START + timedelta(microseconds=micros))
        by_kind, counts, parked = waits(tmp_path, "by_kind", "wait_counts", "parked")
        (row,) = by_kind
        assert (row["operations"], row["open"], row["lost"], row["wait_us_p99"]) == (3, 1, 1, 1_000)
        assert {row["outcome"]: row["bucket"] for row in counts} == {
            "open": found,
            "lost": None,
            "fired": bucket(1_000),
        }
        assert max(row["minute"] for row in parked) == START + timedelta(
            seconds=min(micros // 60_000_000 * 60, 60)
        )


def test_a_crash_that_moved_is_aggregated_again(tmp_path: Path) -> None:
    """A lost operation waited until the last record of its worker, which may arrive late."""
    lost = [{"outcome": "lost", "operation_id": "00000000000a-1"}]
    found = []
    for micros in (200, 250):
        last = (START + timedelta(microseconds=micros)).isoformat()
        starts = {"00000000000a": WorkerStart("w", last, last)}
        if micros == 200:
            write_outcomes(tmp_path, lost, as_of=LATER, starts=starts)
        else:
            other = [ended(START + timedelta(hours=1), 1)]
            write_outcomes(tmp_path, other, as_of=LATER, starts=starts)
        (counts,) = waits(tmp_path, "wait_counts")
        found += [row["bucket"] for row in counts if row["outcome"] == "lost"]
    assert found == [200, 250]


def test_only_frequent_keys_and_prefixes_are_kept(tmp_path: Path) -> None:
    """Of random ones the rest is dropped, and counted together."""
    rows: list[dict[str, Any]] = [
        {"keys": [f"{number}:a", f"{number}:b"]} for number in range(KEPT_KEYS)
    ]
    rows += [{"keys": ["often:1"]}] * 3 + [{"keys": []}, {"outcome": "expired", "lateness_us": 7}]
    write_outcomes(tmp_path, rows, as_of=LATER)
    hot, prefixes = waits(tmp_path, "hot_keys", "by_key_prefix")
    assert (hot[0]["key"], hot[0]["operations"], len(hot)) == ("often:1", 3, 100)
    counts = {row["key_prefix"]: row["operations"] for row in prefixes}
    assert (counts["often"], len(counts), sum(counts.values())) == (3, 201, len(rows))
    Run(str(tmp_path), connected(threads=1)).rollups()
    files = parquet(map(str, (tmp_path / "rollups").rglob("*/hours/*/*.parquet")))
    count = "count(DISTINCT name) FILTER (part = {})"
    parts = ", ".join(map(count.format, (Part.KEY.value, Part.PREFIX_WAIT.value)))
    assert duckdb.execute(f"SELECT {parts} FROM {files}").fetchall() == [
        (KEPT_KEYS, KEPT_PREFIXES + 1)
    ]


def test_spark_scans_the_outcomes_once(
    spark: SparkSession, table: OutcomeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    """And ranks names in two stages: in several tasks for an hour, then what they keep in one."""
    manifest = table.manifest()
    known = OutcomeTable(spark, str(table.folder)).read()
    rows = hour_rows(
        frame(spark, waits_of("known", has_polls=False), known=known),
        starts=manifest.starts,
        as_of=START,
    )
    rows.explain()
    plan = capsys.readouterr().out
    # From the last to the first.
    last, ranked, counted, scanned = re.split(r"(?<!Broadcast)Exchange hashpartitioning", plan)
    assert (
        len(re.findall(r"FileScan|BatchScan", plan)) == len(re.findall(r"FileScan", scanned)) == 1
    )
    assert re.match(r"\(hour#\d+L?, \d+\)", ranked) and re.match(r"\(hour#\d+L?, share", counted)
    for stage in (last, ranked):
        assert "dense_rank" in stage and "HashAggregate" in stage
    # Rows are aggregated where they are read, and none is sorted there.
    assert "partial_count" in scanned
    assert "Sort" not in counted + scanned


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    """The first to publish succeeds."""
    write_outcomes(tmp_path, [ended(START, 1)], as_of=LATER)
    folder = LocalFolder(str(tmp_path / "rollups"))
    manifest = read_rollup_manifest(folder)
    manifest.run = 1
    publish(folder, manifest)
    with pytest.raises(OutputInUseError):
        publish(folder, manifest)


def test_rollups_that_cannot_be_read_are_made_again(tmp_path: Path) -> None:
    """They are made from the outcomes, at any time."""
    write_outcomes(tmp_path, [ended(START, 1)], as_of=LATER)
    waits(tmp_path)
    manifest = tmp_path / "rollups" / "_manifests" / "000001.json"
    manifest.write_text('{"version": 99}')
    ((row,),) = waits(tmp_path, "by_kind")
    assert row["operations"] == 1
    assert [path.name for path in manifest.parent.iterdir()] == ["000002.json"]


def test_without_outcomes_there_is_nothing(tmp_path: Path) -> None:
    """And the error names the job to run."""
    with pytest.raises(NothingToReadError, match="run the job `outcomes`"):
        waits(tmp_path)


def test_duckdb_draws_no_progress_among_the_results() -> None:
    """On stdout, as it does after two seconds, where Python has no terminal either."""
    setting = "current_setting('enable_progress_bar')"
    assert connected().execute(f"SELECT {setting}").fetchall() == [(False,)]


def test_duckdb_spills_beyond_its_memory(tmp_path: Path) -> None:
    """With less than it needs the tables are the same, and nothing is left behind."""
    journal = str(write(tmp_path / "journal", operations=60_000, hours=1.0).folder)
    found = []
    for memory in ("2GiB", "60MiB"):
        connection = connected(memory=memory, threads=1)
        run = Run(str(tmp_path / memory), connection, journal=journal)
        run.update()
        run.write_waits()
        found.append([run.tables.rows("waits", name) for name in TABLES])
        setting = "SELECT current_setting('temp_directory')"
        folder = Path(connection.execute(setting).fetchall()[0][0])
        assert folder.is_dir()
        del run, connection
        assert not folder.exists()
    assert found[0] == found[1]
    without = connected(memory="30MiB", threads=1)
    without.execute("SET temp_directory = ''")
    with pytest.raises(duckdb.OutOfMemoryException):
        Run(str(tmp_path / "without"), without, journal=journal).update()


@pytest.mark.parametrize(
    ("days", "width_s"), [(0.1, 60), (1, 300), (3, 900), (10, 3_600), (50, 21_600), (90, 86_400)]
)
def test_timeline_counts_by_time_kind_and_wait(tmp_path: Path, days: float, width_s: int) -> None:
    """Steps begin at whole multiples of their width, and buckets are eighths of a doubling."""
    last = START + timedelta(days=days)
    micros = (1024, 1151, 1152)
    rows: list[dict[str, Any]] = [
        *({"wait_us": wait_us} for wait_us in micros),
        {"outcome": "open", "kind": "watch", "watched_at": last},
    ]
    write_outcomes(tmp_path, rows, as_of=LATER)
    (timeline,) = waits(tmp_path, "timeline")
    first, second = bucket(1024), bucket(1152)
    assert (second - first, first % COARSE) == (COARSE, 0)
    found = {
        (row["start"], row["kind"], row["outcome"], row["bucket"]): row["count"] for row in timeline
    }
    start, end = (floored(at, width_s) for at in (START, last))
    assert found == {
        (start, "park", "fired", first): 2,
        (start, "park", "fired", second): 1,
        (end, "watch", "open", None): 1,
    }
    assert {row["width_s"] for row in timeline} == {width_s}


def floored(at: datetime, width_s: int) -> datetime:
    """Return the last whole multiple of a width until a time."""
    return at - timedelta(seconds=at.timestamp() % width_s)
