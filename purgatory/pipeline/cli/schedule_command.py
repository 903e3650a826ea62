"""The command `schedule`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from purgatory.jobs import JobLimits
from purgatory.jobs.model.spec import OnConflict
from purgatory.pipeline.cli.command import Command, add_numbers, shown, whole
from purgatory.pipeline.console import counted
from purgatory.pipeline.errors import OutputInUseError, PipelineError
from purgatory.pipeline.run import Run
from purgatory.pipeline.spark.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from purgatory.pipeline.schedule import JobAddress

JOB = "schedule"
STARTED = f"_{JOB}.json"
STORE_VARIABLE = "PURGATORY_STORE"

TABLE = "table"

_FORMATS = ("csv", "json", "parquet", "orc")
_MOST_REASONS = 10


def run_schedule(run: Run) -> str:
    """Add the jobs, write the result of each row, and return a summary."""
    # Spark may not be installed: the other commands do without.
    from purgatory.pipeline.schedule import JobRows, schedule_jobs

    options = run.options
    address = _address(options)
    name, started_ms = started(run.tables.folder, options.name)
    rows = JobRows(
        name=name,
        started_ms=started_ms,
        on_conflict=options.on_conflict,
        limits=JobLimits(max_waiting=options.max_waiting),
    )
    run.on_progress(f"{JOB}: reading {shown(options.source)}")
    jobs = read_table(run.spark, options.source, format_of(options.source, options.source_format))
    if options.tasks:
        jobs = jobs.repartition(options.tasks)

    def fill(new: str) -> None:
        run.on_progress(f"{JOB}: adding, as {name!r}")
        result = schedule_jobs(jobs, address, rows)
        result.write.mode("overwrite").parquet(run.tables.folder.at(f"{new}/rows"))

    run.tables.fill(JOB, fill)
    return summary(run.spark.read.parquet(run.tables.folder.pattern(f"{JOB}/rows")))


def started(folder: Folder, name: str | None) -> tuple[str, int]:
    """Return the name and the start of this run, or of the earlier run that it resumes.

    The ids of jobs are made from both. They are stored below --out, so that running again resumes.
    Raises PipelineError if --out belongs to a run with another name.
    """
    if not folder.exists(STARTED):
        now_ms = time.time_ns() // 1_000_000
        text = json.dumps({"name": name or f"{JOB}-{now_ms}", "started_ms": now_ms})
        try:
            folder.write_new(STARTED, text)
        except OutputInUseError:
            # Another run began at the same time: resume that one.
            if not folder.exists(STARTED):
                raise
    found = json.loads(folder.read_text(STARTED))
    if name not in (None, found["name"]):
        raise PipelineError(
            f"{folder} belongs to the run {found['name']!r}, not to {name!r}: leave --name out to "
            "resume it, or give another --out"
        )
    return found["name"], found["started_ms"]


def format_of(source: str, given: str | None) -> str:
    """Return the given format, else the suffix of `source`. Raises ValueError."""
    ending = given or PurePosixPath(source.rstrip("/")).suffix.lstrip(".").lower()
    found = {"jsonl": "json", "ndjson": "json"}.get(ending, ending or "parquet")
    if found not in (*_FORMATS, TABLE):
        raise ValueError(
            f"{source} ends with .{found}: give --format {', '.join(_FORMATS)} or {TABLE}"
        )
    return found


def read_table(spark: SparkSession, source: str, source_format: str) -> DataFrame:
    """Return a table by its name in Spark's catalogue, or files of a format."""
    if source_format == TABLE:
        return spark.read.table(source)
    reader = spark.read.format(source_format)
    if source_format == "csv":
        # RFC 4180: a quote within quotes is doubled. Spark's default is a backslash.
        reader = reader.option("header", True).option("escape", '"')
    return reader.load(source)


def summary(scheduled: DataFrame) -> str:
    """Return how many rows became jobs, and why the others were refused."""
    from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

    found = (
        scheduled.groupBy("status", "reason")
        .agg(F.sum("rows").alias("rows"), F.min("detail").alias("example"))
        .orderBy(F.desc("rows"), "reason")
        .collect()
    )
    counts: Counter[str] = Counter()
    for row in found:
        counts[row["status"]] += row["rows"]
    lines = [
        f"{counted(counts.total(), 'row')}: {counted(counts['added'], 'job')} added, "
        f"{counts['replaced']:,} replaced, {counts['kept']:,} there already, "
        f"{counts['refused']:,} refused."
    ]
    reasons = [row for row in found if row["status"] == "refused"][:_MOST_REASONS]
    lines += [f"  {row['reason']}: {row['rows']:,}, such as: {row['example']}" for row in reasons]
    return "\n".join(lines)


def _address(options: argparse.Namespace) -> JobAddress:
    from purgatory.pipeline.schedule import JobAddress

    url = options.store or os.environ.get(STORE_VARIABLE)
    if not url:
        raise ValueError(f"no job store: give --store, or set {STORE_VARIABLE}")
    return JobAddress(
        url=url, prefix=options.prefix, shards=options.store_shards, max_waiting=options.max_waiting
    )


def _check(options: argparse.Namespace) -> None:
    _address(options)
    format_of(options.source, options.source_format)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", dest="source", required=True, metavar="TABLE", help="files, or a table's name")
    add(
        "--format",
        dest="source_format",
        choices=(*_FORMATS, TABLE),
        help="of --from; by default the suffix of its name",
    )
    add(
        "--store",
        metavar="URL",
        help="sqlite:///FILE, postgresql://... or redis://...; better in the environment, as "
        f"{STORE_VARIABLE}, if it has a password",
    )
    add("--prefix", default="purgatory", help="of the keys in Redis (default %(default)s)")
    most = JobLimits().max_waiting
    add_numbers(
        parser,
        ("--store-shards", whole(1), "COUNT", 1, "in Redis, as in the service"),
        ("--max-waiting", whole(1), "COUNT", most, "jobs that may wait in all"),
    )
    add("--name", help="of this run; under another name the same rows are other jobs")
    add(
        "--on-conflict",
        choices=[str(choice) for choice in OnConflict],
        default=str(OnConflict.KEEP),
        help="if another waiting job has a row's dedupe key (default %(default)s)",
    )
    add(
        "--tasks",
        type=whole(1),
        metavar="COUNT",
        help="that add jobs in parallel; by default as many as read",
    )


COMMAND = Command(
    name="schedule",
    help="delayed jobs from the rows of a table",
    run=run_schedule,
    add_arguments=_add_arguments,
    check=_check,
)
