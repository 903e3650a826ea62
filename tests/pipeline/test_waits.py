"""Tables of waits: hot keys and what was parked, against DuckDB over the same outcomes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.sql.rollups import bucket_of
from purgatory.pipeline.sql.spark import spark_sql
from purgatory.pipeline.statistics import SUB_BITS, bucket
from tests.pipeline.rolled import START, waits, write_outcomes
from tests.pipeline.synthetic import Written, outcomes

LATER = START + timedelta(days=1)


@pytest.fixture(scope="module")
def tables(table: OutcomeTable) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The hot keys, and what was parked in each minute."""
    hot, parked = waits(Path(table.folder.named("")).parent, "hot_keys", "parked")
    return hot, parked


def test_hot_keys_are_those_that_were_drawn(
    tables: tuple[list[dict[str, Any]], list[dict[str, Any]]], journal: Written
) -> None:
    """The most frequent keys and their counts are as drawn, though one has a third of all.

    Those of jobs are apart.
    """
    drawn: Counter[str] = Counter()
    kinds = dict(journal.truth.kinds)
    of_jobs = kinds.pop("job:cancel-order")
    for kind in kinds.values():
        drawn.update(kind.key_counts)
    # The second key of every "watch".
    drawn["news"] = journal.truth.kinds["watch"].operations
    jobs = [row["operations"] for row in tables[0] if row["is_job"]]
    assert jobs == sorted(of_jobs.key_counts.values(), reverse=True)[:100]
    rows = [row for row in tables[0] if not row["is_job"]][:30]
    counts = [row["operations"] for row in rows]
    assert counts == sorted(drawn.values(), reverse=True)[:30]
    assert all(drawn[row["key"]] == row["operations"] for row in rows)
    assert rows[0]["key"] == "news"
    assert rows[0]["share"] == pytest.approx(
        drawn["news"] / sum(of.operations for of in kinds.values())
    )


def test_parked_is_what_counting_finds(
    tables: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    table: OutcomeTable,
    duck_outcomes: duckdb.DuckDBPyConnection,
) -> None:
    """Mean and peak of every minute are those of counting at each of its sixty moments."""
    manifest = table.manifest()
    as_of = manifest.as_of_time()
    assert as_of is not None
    last = {name: start.last_at for name, start in manifest.starts.items()}
    expected = duck_outcomes.execute(
        """
        WITH last AS (SELECT unnest($starts) AS "start", unnest($last)::TIMESTAMPTZ AS last_at),
        spans AS (
            SELECT kind, epoch_us(watched_at) AS low,
                   coalesce(epoch_us(completed_at), least(
                       $as_of, epoch_us(deadline),
                       CASE WHEN outcome = 'lost' AND last_at < deadline THEN epoch_us(last_at) END
                   )) AS high
            FROM outcomes LEFT JOIN last ON split_part(operation_id, '-', 1) = "start"
        ), moments AS (
            -- The starts of seconds at which each is parked, one row each.
            SELECT kind, unnest(range(low // 1000000 + 1, high // 1000000 + 1)) AS second FROM spans
        ), counted AS (SELECT kind, second, count(*) AS parked FROM moments GROUP BY ALL)
        SELECT kind, second // 60 * 60, sum(parked) / 60, max(parked) FROM counted GROUP BY ALL
        """,
        {
            "as_of": round(as_of.timestamp() * 1e6),
            "starts": [*last],
            "last": [*last.values()],
        },
    ).fetchall()
    rows = tables[1]
    found = {
        (row["kind"], round(row["minute"].timestamp())): (row["parked_mean"], row["parked_peak"])
        for row in rows
        if row["parked_peak"]
    }
    peaks = {place: peak for place, (_, peak) in found.items()}
    assert peaks == {(kind, minute): peak for kind, minute, _, peak in expected}
    means = {place: mean for place, (mean, _) in found.items()}
    assert means == pytest.approx({(kind, minute): mean for kind, minute, mean, _ in expected})
    operations = len(outcomes(table.folder))
    assert sum(row["began"] for row in rows) == sum(row["ended"] for row in rows) == operations


def test_an_end_before_the_start_parks_nothing(tmp_path: Path) -> None:
    """A clock that was set back makes neither a negative wait nor a negative level."""
    row = {"completed_at": START - timedelta(seconds=90), "wait_us": 0}
    write_outcomes(tmp_path, [row], as_of=LATER)
    (rows,) = waits(tmp_path, "parked")
    assert [(row["began"], row["ended"], row["wait_s"], row["parked_mean"]) for row in rows] == [
        (1, 1, 0, 0)
    ]


def test_the_lost_are_censored_at_the_crash(tmp_path: Path) -> None:
    """They waited until their worker's last record; of a worker that lives, nothing is known."""
    names = ("00000000000a-1", "00000000000b-1", "other")
    last = [START + timedelta(microseconds=200), START + timedelta(hours=1)]
    starts = {
        f"00000000000{letter}": WorkerStart("w", at.isoformat(), at.isoformat())
        for letter, at in zip("ab", last, strict=True)
    }
    rows = [{"outcome": "lost", "operation_id": name} for name in names]
    write_outcomes(tmp_path, rows, as_of=LATER, starts=starts)
    (parked,) = waits(tmp_path, "parked")
    ended = {row["minute"]: row["ended"] for row in parked}
    assert [ended[minute] for minute in sorted(ended)] == [1, 2]


def test_buckets_are_the_same_in_spark(spark: SparkSession) -> None:
    """Around every power of two Spark's bucket is Python's."""
    powers = [2**bits for bits in range(62)]
    values = sorted({max(0, power + step) for power in powers for step in (-1, 0, 1)})
    frame = spark.createDataFrame([(value,) for value in values], "value long")
    rows = frame.selectExpr(
        "value", f"{spark_sql(bucket_of('value', SUB_BITS))} AS bucket"
    ).collect()
    assert [row["bucket"] for row in rows] == [bucket(row["value"]) for row in rows]
