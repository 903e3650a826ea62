"""Whether the jobs found the truth: `ENGINE JOURNAL OUT`, after a run that left its results."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from purgatory.pipeline import spark_session
from purgatory.pipeline.advise import advice
from purgatory.pipeline.advise.advice import Advice
from purgatory.pipeline.console import OnProgress, Progress
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import connected
from tests.benchmarks.pipeline.bench_journal import BenchJournal
from tests.benchmarks.pipeline.known_truth import KnownTruth
from tests.benchmarks.pipeline.planted_advice import CAPACITY, TARGETS


def differences(
    engine: SparkSession | duckdb.DuckDBPyConnection,
    journal: BenchJournal,
    out: Path,
    on_progress: OnProgress,
) -> list[str]:
    """Bring outcomes of `journal` up to date with the late files; return what is not as it is true.

    The late files are taken away again.
    """
    run = Run(str(out), engine, journal=str(journal.files), on_progress=on_progress)
    late = journal.deliver_late()
    try:
        update = run.update()
    finally:
        for path in late:
            path.unlink()
    run.write_waits()
    found = advised(run)
    return KnownTruth.read(journal.truth).differences(update, run.outcomes, run.tables, found)


def advised(run: Run) -> Advice:
    """Return the advice on the results of `run`, with the targets that were planted."""
    return advice.run(run.manifest, run.tables, TARGETS, CAPACITY)


def main(name: str, folder: Path, out: Path) -> int:
    """Tell all differences; return 0 iff there are none."""
    engine = spark_session("check") if name == "spark" else connected(memory="1GB", threads=2)
    found = differences(engine, BenchJournal(folder), out, Progress())
    for difference in found:
        sys.stderr.write(f"NOT FOUND. {difference}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(Path, sys.argv[2:])))
