"""The comparison that `make bench-pipeline` makes with ten million operations, with a few."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline import OutcomeTable
from purgatory.pipeline.run import Run
from purgatory.pipeline.spark.tables import Tables
from tests.benchmarks.pipeline.bench_journal import BenchJournal
from tests.benchmarks.pipeline.checked_run import advised, differences
from tests.benchmarks.pipeline.known_truth import KnownTruth


def test_every_fault_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Repeats, gaps, lateness, a drain, a crash, wrong clocks, odd files: all is as it was made up.

    And one that is not is told: otherwise, to find nothing would be no proof.
    """
    journal, out = BenchJournal(tmp_path / "journal"), tmp_path / "out"
    journal.write(20_000)
    truth = KnownTruth.read(journal.truth)
    assert truth.repeated and truth.late and len(truth.broken) == 5
    for outcome in ("fired", "expired", "cancelled", "drained", "lost"):
        assert sum(kind[outcome] for kind in truth.by_kind.values())
    table = OutcomeTable(spark, f"{out}/outcomes")
    first = table.update(str(journal.files))
    assert first.rows == truth.records - truth.late
    assert differences(spark, journal, out, lambda _: None) == []
    park = truth.by_kind["park"]
    wrong = replace(
        truth,
        by_kind=truth.by_kind | {"park": park | {"wait_us_p99": park["wait_us_p99"] * 2}},
        hot_keys=truth.hot_keys[1:],
    )
    update = replace(
        first,
        rows=truth.late + truth.replaced,
        replaced={"a": "made again"},
        manifest=table.manifest(),
    )
    found = advised(Run(str(out), spark))
    told = wrong.differences(update, table, Tables(str(out)), found)
    assert len(told) == 2
    assert re.match(r"wait_us_p99 of park: the jobs found \d+, true is \d+", told[0])
    assert told[1].startswith("operations of the hot keys: the jobs found [")
    planted = truth.advice
    others = {
        "arrivals at the peak": replace(planted, arrivals_per_s=planted.arrivals_per_s * 3),
        "parked at the peak": replace(planted, parked=planted.parked * 1.1),
        "workers": replace(planted, parked=planted.parked * 2),
        "advised timeout of park": replace(
            planted, timeouts_us=planted.timeouts_us | {"park": planted.timeouts_us["watch"]}
        ),
        "expired share of fetch": replace(planted, expired_shares={"fetch": 0.2}),
    }
    for what, other in others.items():
        wrong = replace(truth, advice=other)
        told = wrong.differences(update, table, Tables(str(out)), found)
        assert any(line.startswith(what) for line in told), what
