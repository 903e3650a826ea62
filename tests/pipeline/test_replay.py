"""Replay: what is recorded comes out again, and what is asked changes what it should."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.replay.loads import Growth, SyntheticLoad, WhatIf
from purgatory.pipeline.replay.replay import (
    REPLAY_SCHEMA,
    replay_outcomes,
    replay_synthetic,
    simulation,
)
from purgatory.pipeline.replay.summary import ReplaySummary, replay_by_shard, replay_summary
from purgatory.pipeline.sql.duck import DuckRunner, connected
from tests.nightly import NIGHTLY
from tests.pipeline.synthetic import write

OPERATIONS = 2_500


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the outcomes of a small journal, with a restart in it."""
    folder = tmp_path_factory.mktemp("replay")
    written = write(folder / "journal", operations=OPERATIONS, drains=(2.1,))
    runner = DuckRunner(connected(threads=1))
    OutcomeTable(runner, str(folder / "outcomes")).update(str(written.folder))
    return folder


@pytest.fixture(scope="module")
def everything(spark: SparkSession, out: Path) -> Iterator[DataFrame]:
    """Its outcomes."""
    found = OutcomeTable(spark, str(out / "outcomes")).read().cache()
    yield found
    found.unpersist()


@pytest.fixture(scope="module")
def recorded(everything: DataFrame) -> DataFrame:
    """Those of them that were parked, as jobs are not."""
    return everything.where("kind NOT LIKE 'job:%'")


def played(outcomes: DataFrame, what_if: WhatIf | None = None, shards: int = 3) -> ReplaySummary:
    found = replay_outcomes(outcomes, what_if, shards=shards).cache()
    try:
        return replay_summary(found, slice_s=60)
    finally:
        found.unpersist()


@pytest.fixture(scope="module")
def unchanged(recorded: DataFrame) -> ReplaySummary:
    """The replay of what is recorded."""
    return played(recorded)


def outcome_counts(outcomes: DataFrame) -> dict[str, int]:
    return {row["outcome"]: row["count"] for row in outcomes.groupBy("outcome").count().collect()}


def test_what_is_recorded_comes_out_again(recorded: DataFrame, unchanged: ReplaySummary) -> None:
    """With nothing changed, every operation ends as it did."""
    expected, found = outcome_counts(recorded), unchanged
    assert (found.operations, found.fired, found.cancelled) == (
        recorded.count(),
        expected["fired"],
        expected["cancelled"] + expected["drained"],
    )
    assert found.expired == expected["expired"] + expected.get("open", 0) + expected.get("lost", 0)
    assert found.newly_expired == 0
    assert found.unknown == expected.get("open", 0) + expected.get("lost", 0)
    assert found.lateness_us[100.0] < 1_000


@NIGHTLY
def test_jobs_are_left_out_and_operations_without_keys_are_not(
    everything: DataFrame, recorded: DataFrame
) -> None:
    """Jobs wait in their store; what has no key ends by itself, as it did."""
    keyless = everything.withColumns(
        {"keys": F.array().cast("array<string>"), "completed_by": F.lit(None).cast("string")}
    )
    expected, found = outcome_counts(recorded), played(keyless)
    assert found.operations == recorded.count() < everything.count()
    assert (found.fired, found.cancelled) == (
        expected["fired"],
        expected["cancelled"] + expected["drained"],
    )


def test_the_number_of_shards_changes_no_outcome(
    recorded: DataFrame, unchanged: ReplaySummary
) -> None:
    """Shards are a matter of who does the work."""
    one, three = played(recorded, shards=1), unchanged
    for name in ("fired", "expired", "lateness_us"):
        assert getattr(one, name) == getattr(three, name)
    assert (one.shards, three.shards) == (1, 3)
    # With one shard the peak is exact, and it is between the bounds that several give.
    assert one.peak_at_least == one.peak_at_most
    assert three.peak_at_least <= one.peak_at_most <= three.peak_at_most


def test_shorter_timeouts_expire_what_took_longer(recorded: DataFrame) -> None:
    """Halved: whatever took more than half of its timeout expires now."""
    slow = recorded.where(
        F.col("outcome").isin("fired", "cancelled", "drained")
        & (F.col("wait_us") > F.col("timeout_us") / 2 + 1_000)
    ).count()
    found = played(recorded, WhatIf(timeout=0.5))
    assert slow > 100
    assert found.newly_expired == pytest.approx(slow, rel=0.01)
    assert found.operations == found.fired + found.expired + found.cancelled


@NIGHTLY
def test_longer_timeouts_say_what_is_not_known(recorded: DataFrame) -> None:
    """What would have become of those that expired is in no journal."""
    found = played(recorded, WhatIf(timeout=2))
    assert found.newly_expired == 0
    assert found.unknown == found.expired


@pytest.mark.parametrize("growth", [Growth.WIDER, pytest.param(Growth.BUSIER, marks=NIGHTLY)])
def test_more_traffic_is_more_of_the_same(
    recorded: DataFrame, unchanged: ReplaySummary, growth: Growth
) -> None:
    """Twice and a half as much: half of the keys come a third time."""
    once = unchanged
    found = played(recorded, WhatIf(traffic=2.5, growth=growth))
    assert found.operations == pytest.approx(2.5 * once.operations, rel=0.05)
    assert found.fired / found.operations == pytest.approx(once.fired / once.operations, rel=0.05)
    assert found.peak_at_most > 1.5 * once.peak_at_most


@NIGHTLY
def test_less_traffic_keeps_whole_keys(recorded: DataFrame) -> None:
    """A half of the keys, with all that waits on them."""
    found = played(recorded, WhatIf(traffic=0.5))
    assert 0 < found.operations < recorded.count()


@NIGHTLY
def test_another_wheel_changes_cascades_and_lateness_only(
    recorded: DataFrame, unchanged: ReplaySummary
) -> None:
    """Kafka's wheel has more levels; a coarse tick is later."""
    ours, kafkas = unchanged, played(recorded, WhatIf(wheel_size=20))
    coarse = played(recorded, WhatIf(tick_ms=50))
    assert kafkas.cascaded > 1.5 * ours.cascaded
    assert (kafkas.fired, kafkas.expired) == (ours.fired, ours.expired)
    assert 40_000 < coarse.lateness_us[100.0] < 51_000


def test_a_drawn_load_gives_what_one_plain_process_finds(spark: SparkSession) -> None:
    """The same shards, one after the other, without Spark."""
    load = SyntheticLoad(operations=6_000, shards=3)
    what_if = WhatIf(traffic=2, timeout=0.5)
    found = replay_synthetic(spark, load, what_if, slice_s=1)
    assert found.schema.names == REPLAY_SCHEMA.names
    totals = {
        row["shard"]: (row["operations"], row["fired"], row["expired"], row["cascaded"])
        for row in replay_by_shard(found).collect()
    }
    changed = load.changed(what_if)
    assert changed.operations == 12_000
    for shard in range(3):
        slices = list(simulation(what_if, 1).run(changed.batches(shard, timeout=what_if.timeout)))
        assert totals[shard] == (
            sum(piece.operations for piece in slices),
            sum(piece.fired for piece in slices),
            sum(piece.expired for piece in slices),
            sum(piece.cascaded for piece in slices),
        )


@NIGHTLY
def test_a_worker_s_collector_does_not_look_at_what_was_imported(spark: SparkSession) -> None:
    """Spark collects after each task, which would take longer than a small one."""

    def frozen(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"count": [gc.get_freeze_count()]})

    assert replay_synthetic(spark, SyntheticLoad(operations=1, shards=1)).count() == 1
    # More tasks than there are workers, who take turns.
    found = spark.range(0, 16, numPartitions=16).mapInArrow(frozen, "count long").collect()
    assert max(row["count"] for row in found) > 0


@NIGHTLY
def test_the_command_plays_a_drawn_load(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes three tables, and does not say how far a billion is from so little."""
    assert (
        main(
            [
                *("replay", "--out", str(tmp_path), "--load", "kafka-high"),
                *("--operations", "2000", "--shards", "2", "--slice", "1", "--traffic", "0.5"),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert said.startswith("1,000 operations in")
    assert " a second." in said
    assert "take" not in said
    for name in ("slices", "by_time", "by_shard"):
        assert spark.read.parquet(f"{tmp_path}/replay/{name}").count() > 0


def test_one_shard_knows_how_many_waited_at_once(spark: SparkSession) -> None:
    """Though all of them were gone at the end of each slice."""
    load = SyntheticLoad(operations=1_000, shards=1, rate_per_s=1e6)
    found = replay_summary(replay_synthetic(spark, load).cache(), slice_s=60)
    assert found.peak_at_least == found.peak_at_most > 0


def test_the_command_leaves_jobs_out(
    recorded: DataFrame, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They waited in a store, not in a purgatory."""
    parked = recorded.where("kind NOT LIKE 'job:%'").count()
    assert 0 < parked < OPERATIONS
    assert main(["replay", "--out", str(out), "--shards", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{parked:,} operations in")


def test_the_command_says_what_is_missing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without outcomes there is nothing to replay."""
    assert main(["replay", "--out", str(tmp_path)]) == 1
    assert "run the job `outcomes`" in capsys.readouterr().err


def test_no_slices_and_no_shards_are_refused(spark: SparkSession) -> None:
    """Before a worker divides by them."""
    outcomes = spark.createDataFrame([], "operation_id string")
    with pytest.raises(ValueError, match="shards is 0 and slice_s 60: give 1 or more"):
        replay_outcomes(outcomes, shards=0)
    with pytest.raises(ValueError, match="slice_s is 0: give 1 or more"):
        replay_synthetic(spark, SyntheticLoad(operations=1), slice_s=0)
