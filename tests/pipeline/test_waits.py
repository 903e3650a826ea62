"""Waits: counts, percentiles, hot keys and what was parked, against DuckDB over the same rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline import OutcomeTable, concurrency, hot_keys, percentiles, waits_by
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.outcomes import OUTCOME_SCHEMA, OUTCOMES
from purgatory.pipeline.statistics import bucket, bucket_column, bucket_middle_column
from purgatory.pipeline.waits.wait_statistics import PERCENTS, with_crashes
from tests.pipeline.synthetic import Written

START = datetime(2026, 11, 20, 6, tzinfo=UTC)

# Nearest rank, in whole numbers: the least value that so many percent do not exceed.
RANKED = """
SELECT {by}, max({value}) FILTER (place = greatest(1, (n * {thousandths} + 99999) // 100000))
FROM (
    SELECT {by}, {value}, count(*) OVER (PARTITION BY {by}) AS n,
           row_number() OVER (PARTITION BY {by} ORDER BY {value}) AS place
    FROM outcomes WHERE {value} IS NOT NULL
) GROUP BY ALL
"""


def outcome_rows(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return outcomes of operations that began at START unless they say otherwise."""
    usual = {"kind": "park", "keys": ["a"], "watched_at": START, "outcome": "fired"}
    usual["deadline"] = START + timedelta(seconds=100)
    filled = [{"operation_id": f"op-{place}"} | usual | row for place, row in enumerate(rows)]
    return spark.createDataFrame(
        [tuple(row.get(name) for name in OUTCOME_SCHEMA.names) for row in filled], OUTCOME_SCHEMA
    )


@pytest.mark.parametrize("value", ["wait_us", "lateness_us"])
def test_percentiles_are_exact(
    value: str, table: OutcomeTable, duck_outcomes: duckdb.DuckDBPyConnection
) -> None:
    """Every exact percentile is the very value that sorting finds; approximate is within 0.4 %."""
    found = {
        (row["kind"], row["percent"]): (row["exact"], row["approximate"])
        for row in percentiles(table.read(), ["kind"], [value], PERCENTS).collect()
    }
    expected = {
        (kind, percent): exact
        for percent in PERCENTS
        for kind, exact in duck_outcomes.execute(
            RANKED.format(by="kind", value=value, thousandths=round(percent * 1000))
        ).fetchall()
    }
    assert {place: exact for place, (exact, _) in found.items()} == expected
    for exact, approximate in found.values():
        assert abs(approximate - exact) <= exact / 256


@pytest.mark.parametrize("by", ["kind", "worker"])
def test_counts_are_those_of_another_engine(
    by: str, table: OutcomeTable, duck_outcomes: duckdb.DuckDBPyConnection
) -> None:
    """Each group has its operations, its outcomes and its mean and longest wait."""
    counts = ", ".join(f"count(*) FILTER (outcome = '{name}')" for name in OUTCOMES)
    expected = duck_outcomes.execute(
        f"SELECT {by}, count(*), {counts}, max(wait_us), avg(wait_us) FROM outcomes GROUP BY ALL"
    ).fetchall()
    columns = ["operations", *OUTCOMES, "wait_us_max"]
    rows = waits_by(table.read(), [by]).collect()
    found = {row[by]: [row[name] for name in columns] for row in rows}
    assert found == {name: list(values[:-1]) for name, *values in expected}
    means = {row[by]: row["wait_us_mean"] for row in rows}
    assert means == pytest.approx({row[0]: row[-1] for row in expected})
    for row in rows:
        assert sum(row[f"share_{name}"] for name in OUTCOMES) == pytest.approx(1)


def test_hot_keys_are_those_that_were_drawn(table: OutcomeTable, journal: Written) -> None:
    """The most frequent keys and their counts are as drawn, though one has a third of all."""
    drawn: dict[str, int] = {}
    for kind in journal.truth.kinds.values():
        for key, count in kind.key_counts.items():
            drawn[key] = drawn.get(key, 0) + count
    # The second key of every "watch".
    drawn["news"] = journal.truth.kinds["watch"].operations
    rows = hot_keys(table.read(), most=30).collect()
    counts = [row["operations"] for row in rows]
    assert counts == sorted(drawn.values(), reverse=True)[:30]
    assert all(drawn[row["key"]] == row["operations"] for row in rows)
    assert rows[0]["key"] == "news"
    assert rows[0]["share"] == pytest.approx(drawn["news"] / journal.truth.operations)


def test_parked_is_what_counting_finds(
    table: OutcomeTable, duck_outcomes: duckdb.DuckDBPyConnection
) -> None:
    """Mean and peak of every minute are those of counting at each of its sixty moments."""
    as_of = table.manifest().as_of_time()
    assert as_of is not None
    expected = duck_outcomes.execute(
        """
        WITH spans AS (
            SELECT kind, epoch_us(watched_at) AS low,
                   coalesce(epoch_us(completed_at), least($as_of, epoch_us(deadline))) AS high
            FROM outcomes
        ), moments AS (
            -- The starts of seconds at which each is parked, one row each.
            SELECT kind, unnest(range(low // 1000000 + 1, high // 1000000 + 1)) AS second FROM spans
        ), counted AS (SELECT kind, second, count(*) AS parked FROM moments GROUP BY ALL)
        SELECT kind, second // 60 * 60, sum(parked) / 60, max(parked) FROM counted GROUP BY ALL
        """,
        {"as_of": round(as_of.timestamp() * 1e6)},
    ).fetchall()
    rows = concurrency(table.read(), as_of=as_of).collect()
    found = {
        (row["kind"], round(row["minute"].timestamp())): (row["parked_mean"], row["parked_peak"])
        for row in rows
        if row["parked_peak"]
    }
    peaks = {place: peak for place, (_, peak) in found.items()}
    assert peaks == {(kind, minute): peak for kind, minute, _, peak in expected}
    means = {place: mean for place, (mean, _) in found.items()}
    assert means == pytest.approx({(kind, minute): mean for kind, minute, mean, _ in expected})
    operations = table.read().count()
    assert sum(row["began"] for row in rows) == sum(row["ended"] for row in rows) == operations


def test_parked_over_days_of_silence(spark: SparkSession) -> None:
    """One that waits for days is there in each minute between; nothing is, after it."""
    end = START + timedelta(days=2, seconds=30)
    frame = outcome_rows(
        spark,
        {"completed_at": end, "wait_us": 0},
        {"watched_at": end + timedelta(days=3), "completed_at": end + timedelta(days=3)},
    )
    rows = concurrency(frame, as_of=end + timedelta(days=9)).collect()
    assert len(rows) == 2 * 24 * 60 + 2
    levels = sorted((row["minute"].timestamp(), row["parked_mean"]) for row in rows)
    assert [mean for _, mean in levels][1:-2] == [1.0] * (2 * 24 * 60 - 1)
    # The moment at which it began is not after it, and of the last minute there are 31 moments.
    assert [levels[0][1], levels[-2][1], levels[-1][1]] == pytest.approx([59 / 60, 31 / 60, 0])


def test_an_end_before_the_start_parks_nothing(spark: SparkSession) -> None:
    """A clock that was set back makes neither a negative wait nor a negative level."""
    frame = outcome_rows(spark, {"completed_at": START - timedelta(seconds=90), "wait_us": 0})
    rows = concurrency(frame, as_of=START + timedelta(days=1)).collect()
    assert [(row["began"], row["ended"], row["wait_s"], row["parked_mean"]) for row in rows] == [
        (1, 1, 0, 0)
    ]


def test_what_never_ended_has_no_wait(spark: SparkSession) -> None:
    """Open and lost operations count, and no percentile knows them."""
    frame = outcome_rows(
        spark, {"outcome": "open"}, {"outcome": "lost"}, {"wait_us": 1_000, "completed_at": START}
    )
    row = waits_by(frame, ["kind"]).collect()[0]
    assert (row["operations"], row["open"], row["lost"]) == (3, 1, 1)
    assert (row["wait_us_p50"], row["wait_us_p99"], row["lateness_us_p50"]) == (1_000, 1_000, None)


def test_the_lost_are_censored_at_the_crash(spark: SparkSession) -> None:
    """They waited until their worker's last record; of a worker that lives, nothing is known."""
    frame = outcome_rows(
        spark,
        {"outcome": "lost", "operation_id": "00000000000a-1"},
        {"outcome": "lost", "operation_id": "00000000000b-1"},
        {"outcome": "lost", "operation_id": "other"},
    )
    last = [START + timedelta(microseconds=200), START + timedelta(hours=1)]
    starts = {
        f"00000000000{letter}": WorkerStart("w", 1, 1, 1, at.isoformat())
        for letter, at in zip("ab", last, strict=True)
    }
    crashed = with_crashes(frame, starts)
    as_of = START + timedelta(days=1)
    ended = {row["minute"]: row["ended"] for row in concurrency(crashed, as_of=as_of).collect()}
    assert [ended[minute] for minute in sorted(ended)] == [1, 2]


def test_buckets_are_the_same_in_spark(spark: SparkSession) -> None:
    """Around every power of two Spark's bucket is Python's, and its middle is within 1/256."""
    powers = [2**bits for bits in range(62)]
    values = sorted({max(0, power + step) for power in powers for step in (-1, 0, 1)})
    frame = spark.createDataFrame([(value,) for value in values], "value long")
    found = frame.select("value", bucket_column(frame.value).alias("bucket"))
    rows = found.select("*", bucket_middle_column(found.bucket).alias("middle")).collect()
    assert [row["bucket"] for row in rows] == [bucket(row["value"]) for row in rows]
    assert all(abs(row["middle"] - row["value"]) <= row["value"] / 256 for row in rows)
