"""Whether the jobs found the truth: `JOURNAL OUT`, after a run of Spark that left its results."""

from __future__ import annotations

import sys
from pathlib import Path

from purgatory.pipeline import OutcomeTable, spark_session, waits_job
from purgatory.pipeline.progress import Progress
from purgatory.pipeline.tables import Tables
from tests.benchmarks.pipeline.bench_journal import BenchJournal
from tests.benchmarks.pipeline.known_truth import KnownTruth


def main(folder: Path, out: Path) -> int:
    """Run the jobs once more with the late files, and compare; return 0 iff all of it is true."""
    spark = spark_session("check")
    table, tables, say = OutcomeTable(spark, f"{out}/outcomes"), Tables(spark, str(out)), Progress()
    journal = BenchJournal(folder)
    truth = KnownTruth.read(journal.truth)
    late = journal.deliver_late()
    try:
        update = table.update(str(journal.files), say=say)
    finally:
        for path in late:
            path.unlink()
    waits_job.run(table, tables, say)
    differences = truth.differences(update, table, tables)
    spark.stop()
    for difference in differences:
        sys.stderr.write(f"NOT FOUND. {difference}\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
