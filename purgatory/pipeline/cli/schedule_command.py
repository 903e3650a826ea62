"""The command `schedule`."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import PurePosixPath

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.jobs import JobLimits, OnConflict
from purgatory.pipeline.cli.command import Call, Command
from purgatory.pipeline.cli.option_types import whole
from purgatory.pipeline.console.formatting import counted
from purgatory.pipeline.errors import OutputInUseError, PipelineError
from purgatory.pipeline.schedule.job_address import JobAddress
from purgatory.pipeline.schedule.job_rows import JobRows
from purgatory.pipeline.schedule.schedule import schedule
from purgatory.pipeline.spark.folder import Folder

JOB = "schedule"
STARTED = f"_{JOB}.json"
STORE_VARIABLE = "PURGATORY_STORE"

TABLE = "table"

_FORMATS = ("csv", "json", "parquet", "orc")
_MOST_REASONS = 10


def run_schedule(call: Call) -> str:
    """Add the jobs, write what became of each row, and sum it up."""
    options = call.options
    address = _address(options)
    name, started_ms = started(call.tables.folder, options.name)
    rows = JobRows(
        name=name,
        started_ms=started_ms,
        on_conflict=options.on_conflict,
        limits=JobLimits(max_waiting=options.max_waiting),
    )
    jobs = read_table(call.spark, options.source, format_of(options.source, options.source_format))
    if options.tasks:
        jobs = jobs.repartition(options.tasks)

    def fill(new: str) -> None:
        call.on_progress(f"{JOB}: adding, as {name!r}")
        result = schedule(jobs, address, rows)
        result.write.mode("overwrite").parquet(call.tables.folder.at(f"{new}/rows"))

    call.tables.fill(JOB, fill)
    return summed_up(call.spark.read.parquet(call.tables.folder.pattern(f"{JOB}/rows")))


def started(folder: Folder, name: str | None) -> tuple[str, int]:
    """Return the name and the time of this run, or of the one that it goes on with.

    Both are what the ids of the jobs are made of: kept below --out, so that to run again is to go
    on. Raises PipelineError where --out is of a run with another name.
    """
    if not folder.exists(STARTED):
        now_ms = time.time_ns() // 1_000_000
        text = json.dumps({"name": name or f"{JOB}-{now_ms}", "started_ms": now_ms})
        try:
            folder.write_new(STARTED, text)
        except OutputInUseError:
            # Somebody else began at the same moment: go on with theirs.
            if not folder.exists(STARTED):
                raise
    found = json.loads(folder.read_text(STARTED))
    if name not in (None, found["name"]):
        raise PipelineError(
            f"{folder} is of the run {found['name']!r}, not of {name!r}: to go on with that one "
            "leave --name out, for another one give another --out"
        )
    return found["name"], found["started_ms"]


def format_of(source: str, given: str | None) -> str:
    """Return the format that was given, else that of the name's ending. Raises ValueError."""
    ending = given or PurePosixPath(source.rstrip("/")).suffix.lstrip(".").lower()
    found = {"jsonl": "json", "ndjson": "json"}.get(ending, ending or "parquet")
    if found not in (*_FORMATS, TABLE):
        raise ValueError(
            f"{source} ends with .{found}: say what it is, --format {', '.join(_FORMATS)} or "
            f"{TABLE}"
        )
    return found


def read_table(spark: SparkSession, source: str, source_format: str) -> DataFrame:
    """Return a table by its name in Spark's catalogue, or files of a format."""
    if source_format == TABLE:
        return spark.read.table(source)
    reader = spark.read.format(source_format)
    if source_format == "csv":
        # As RFC 4180 has it: a quote within quotes is doubled. Spark's own way is a backslash.
        reader = reader.option("header", True).option("escape", '"')
    return reader.load(source)


def summed_up(scheduled: DataFrame) -> str:
    """Return how many rows became jobs, and why the others did not."""
    counts = {
        row["status"]: row["rows"]
        for row in scheduled.groupBy("status").agg(F.sum("rows").alias("rows")).collect()
    }
    refused = counts.get("refused", 0)
    lines = [
        f"{counted(sum(counts.values()), 'row')}: {counted(counts.get('added', 0), 'job')} added, "
        f"{counts.get('replaced', 0):,} replaced, {counts.get('kept', 0):,} there already, "
        f"{refused:,} refused."
    ]
    reasons = (
        scheduled.where("status = 'refused'")
        .groupBy("reason")
        .agg(F.sum("rows").alias("rows"), F.min("detail").alias("example"))
        .orderBy(F.desc("rows"), "reason")
        .limit(_MOST_REASONS)
        .collect()
    )
    lines += [f"  {row['reason']}: {row['rows']:,}, such as: {row['example']}" for row in reasons]
    return "\n".join(lines)


def _address(options: argparse.Namespace) -> JobAddress:
    url = options.store or os.environ.get(STORE_VARIABLE)
    if not url:
        raise ValueError(f"no store of jobs: give --store, or set {STORE_VARIABLE}")
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
        help="of --from; by default what its name ends with",
    )
    add(
        "--store",
        metavar="URL",
        help="sqlite:///FILE, postgresql://... or redis://...; better in the environment, as "
        f"{STORE_VARIABLE}, if it has a password",
    )
    add("--prefix", default="purgatory", help="of the keys in Redis (default %(default)s)")
    add(
        "--store-shards",
        type=whole(1),
        default=1,
        metavar="COUNT",
        help="in Redis, as the service has it (default %(default)s)",
    )
    add(
        "--max-waiting",
        type=whole(1),
        default=JobLimits().max_waiting,
        metavar="COUNT",
        help="jobs that may wait in all (default %(default)s)",
    )
    add("--name", help="of this run; rows of another name are other jobs")
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
        help="that add at the same time; by default those that read",
    )


COMMAND = Command(
    name="schedule",
    help="delayed jobs from the rows of a table",
    run=run_schedule,
    add_arguments=_add_arguments,
    check=_check,
)
