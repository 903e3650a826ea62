"""Whether the jobs found the truth: `JOURNAL OUT`, after a run of Spark that left its results."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline import OutcomeTable, spark_session
from purgatory.pipeline.advise import advice
from purgatory.pipeline.advise.advice import Advice
from purgatory.pipeline.cli.run import Run
from purgatory.pipeline.console import OnProgress, Progress
from purgatory.pipeline.spark.folders import Tables
from tests.benchmarks.pipeline.bench_journal import BenchJournal
from tests.benchmarks.pipeline.known_truth import KnownTruth
from tests.benchmarks.pipeline.planted_advice import CAPACITY, TARGETS


def differences(
    spark: SparkSession, journal: BenchJournal, out: Path, on_progress: OnProgress
) -> list[str]:
    """Bring outcomes of `journal` up to date with the late files; return what is not as it is true.

    The late files are taken away again.
    """
    table, tables = OutcomeTable(spark, f"{out}/outcomes"), Tables(str(out))
    late = journal.deliver_late()
    try:
        update = table.update(str(journal.files), on_progress=on_progress)
    finally:
        for path in late:
            path.unlink()
    run = Run(str(out), spark, on_progress=on_progress)
    run.write_waits()
    found = advised(run)
    return KnownTruth.read(journal.truth).differences(update, table, tables, found)


def advised(run: Run) -> Advice:
    """Return the advice on the results of `run`, with the targets that were planted."""
    return advice.run(run.manifest, run.tables, TARGETS, CAPACITY)


def main(folder: Path, out: Path) -> int:
    """Tell all differences; return 0 iff there are none."""
    spark = spark_session("check")
    found = differences(spark, BenchJournal(folder), out, Progress())
    spark.stop()
    for difference in found:
        sys.stderr.write(f"NOT FOUND. {difference}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
