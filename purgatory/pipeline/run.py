"""Runs of the pipeline, and the engine that computes their tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from purgatory.errors import PurgatoryError
from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.outcomes.manifest import (
    Known,
    Manifest,
    check_has_hours,
    newest_run,
    read_manifest,
)
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.outcomes.update_run import Update
from purgatory.pipeline.rollups.rollup_files import RollupManifest, Rollups, read_rollup_manifest
from purgatory.pipeline.rollups.rollups import FOLDER, RollupRun
from purgatory.pipeline.rollups.wait_tables import (
    JOB,
    FailedJobs,
    failed_jobs,
    write_waits,
)
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import SCHEMES, Folder, LocalFolder, folder_at, is_local
from purgatory.pipeline.spark.session import REMOTE_VARIABLE, spark_errors
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.duck import DuckRunner, connected
from purgatory.pipeline.sql.outcomes import waits_of
from purgatory.pipeline.sql.runner import FEW_RECORDS
from purgatory.pipeline.sql.selection import Examples, Selection, tails_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = Path("/sys/fs/cgroup")
# Of cgroup v2 and v1.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def machine_memory(group: Path = _GROUP) -> int | None:
    """Return the bytes of this machine, or of the container that `group` limits; None if unknown.

    A container shows the machine's memory as its own, and kills a process that exceeds its limit.
    """
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        return None  # As on Windows.
    for name in _LIMITS:
        try:
            limit = (group / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        # Otherwise it is "max": no limit.
        if limit.isdigit():
            found.append(int(limit))
    return min(found)


# A journal takes about ten times its size while it is merged.
_SHARE_OF_MEMORY = 20
_LEAST_MEMORY = 2**30
# Below, compiling for the best speed takes longer than running without.
_SHORT_BYTES = 16 * 2**20
# Of operations that DuckDB rolls up for Spark: with different keys they take 1.2 GiB.
_LARGEST_HOUR = 10_000_000
# In Spark, S3 is s3a.
_ARROW_ONLY = ("s3", "gs")
# Set by spark-submit, and by users of Spark Connect.
_OTHER_SPARK = {"PYSPARK_GATEWAY_PORT", REMOTE_VARIABLE}


class EngineName(StrEnum):
    """What computes the tables."""

    AUTO = "auto"
    """DuckDB if what is new fits into this machine's memory, unless --master is given."""
    SPARK = "spark"
    DUCKDB = "duckdb"


class Run:
    """One run over the results below `out`: its options, its engine, and what it has read.

    The jobs `outcomes`, `waits`, `advise` and `report` read and write tables by it. Manifests,
    tables and the list of the journal's files are large after a year of hours: each is read once,
    and only if it is used. What is returned must not be changed.
    """

    def __init__(
        self,
        out: str,
        engine: SparkSession | duckdb.DuckDBPyConnection | None = None,
        *,
        journal: str | None = None,
        options: argparse.Namespace | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """Use results that need not exist; `engine` may be set until a table is computed."""
        self.out = out
        self.engine = engine
        self.journal = journal
        self.options = options or argparse.Namespace()
        self.on_progress = on_progress
        self.tables = Tables(out)
        """The results other than outcomes and rollups."""
        self.selection = Selection()
        """The part of the outcomes that it is on."""
        self._outcomes = folder_at(f"{out}/outcomes")
        self._rolled = folder_at(f"{out}/{FOLDER}")
        self._manifest: Manifest | None = None
        self._rollup_manifest: RollupManifest | None = None
        self._rollups: tuple[int, Rollups] | None = None

    @property
    def spark(self) -> SparkSession:
        """The session of a run on Spark."""
        assert self.engine is not None and not self.is_duckdb, "it is not a run on Spark"
        return self.engine  # type: ignore[return-value] # see above

    @property
    def is_duckdb(self) -> bool:
        """Whether the engine is DuckDB."""
        return isinstance(self.engine, duckdb.DuckDBPyConnection)

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to DuckDB, which merges rollups beside Spark, too: they are small."""
        return self.engine if isinstance(self.engine, duckdb.DuckDBPyConnection) else connected()

    @property
    def outcomes(self) -> OutcomeTable:
        """The table of outcomes."""
        engine = DuckRunner(self.connection) if self.is_duckdb else self.spark
        return OutcomeTable(engine, str(self._outcomes))

    def update(self, **options: Any) -> Update:
        """Update the outcomes from the journal, see `OutcomeTable.update`."""
        assert self.journal is not None
        update = self.outcomes.update(
            self.journal, on_progress=self.on_progress, known=self.known, **options
        )
        self._manifest = update.manifest
        return update

    @property
    def manifest(self) -> Manifest:
        """The valid manifest of the outcomes."""
        known = self._manifest
        if known is None or known.run != newest_run(self._outcomes):
            self._manifest = known = self.selection.manifest(read_manifest(self._outcomes))
        return known

    def selected(self, selection: Selection, place: str) -> Run:
        """Return a run on a part of the outcomes, whose tables are written to the folder `place`.

        Rollups have no labels, so they are made from the outcomes, and anew each time. Raises
        NothingToReadError if there is no operation of the selection.
        """
        run = Run(self.out, self.engine, options=self.options, on_progress=self.on_progress)
        run.selection = selection
        check_has_hours(self._outcomes, self.manifest)
        if selection.by is not None:
            values = tuple(row["value"] for row in run.rows(selection.frequent))
            run.selection = selection = replace(selection, values=values)
        folder_at(self.out).delete(place)
        run.tables = Tables(f"{self.out}/{place}")
        run._rolled = folder_at(f"{self.out}/{place}/{FOLDER}")
        if not run.manifest.hours or not run.rollups().manifest.hours:
            raise NothingToReadError(f"There is no operation of the selection: {selection}.")
        run.write_waits()
        return run

    def rows(self, query: Callable[[str], str]) -> Sequence[Any]:
        """Return the rows of a query over the relation of `waits_of` that it is given."""
        table, manifest = self.outcomes, self.manifest
        count = sum(hour.operations for hour in manifest.hours.values())
        places = (table.folder, manifest.paths())
        table.runner.read("known", OUTCOME_SCHEMA, places, rows=count)
        table.runner.define("waits", waits_of("known", has_polls=manifest.has_polls()))
        return table.runner.rows(query("waits"))

    def examples(self) -> Examples:
        """Return the slowest operations of the selection, and the fires that ended them."""
        tails = tails_us(self.tables.rows(JOB, "wait_counts"))
        return Examples(
            selection=self.selection,
            slowest=self.rows(self.selection.slowest),
            late_fires=self.rows(partial(self.selection.late_fires, tails_us=tails)),
        )

    @cached_property
    def known(self) -> Known:
        """The files of the journal. Raises PipelineError for a folder that cannot be listed."""
        assert self.journal is not None
        return Known.of(self.manifest, folder_at(self.journal))

    @cached_property
    def bytes(self) -> int:
        """The size of the new files of the journal, and of the outcomes without rollups.

        What earlier runs have read is not read again, whatever its size.
        """
        size = sum(file.size for file in self.known.new) if self.journal else 0
        if self.options.needs_rollups:
            stale = self._read_rollup_manifest().stale_hours(self.manifest)
            size += sum(self.manifest.hours[name].bytes for name in stale)
        return size

    def rollups(self) -> Rollups:
        """Bring the rollups up to date, and return them.

        Raises NothingToReadError without outcomes.
        """
        manifest = self.manifest
        check_has_hours(self._outcomes, manifest)
        if self._rollups is None or self._rollups[0] != manifest.run:
            before = self._read_rollup_manifest()
            spark = None if self.is_duckdb else self.spark
            operations = [manifest.hours[hour].operations for hour in before.stale_hours(manifest)]
            if spark is not None and is_for_one_process(spark, self._outcomes, operations):
                spark = None
            run = RollupRun(
                self.connection,
                self._rolled,
                self._outcomes,
                manifest,
                self.on_progress,
                before,
                spark=spark,
                selection=self.selection,
            )
            self._rollups = manifest.run, run.update()
        return self._rollups[1]

    def _read_rollup_manifest(self) -> RollupManifest:
        known = self._rollup_manifest
        if known is None or known.run != newest_run(self._rolled):
            known = self._rollup_manifest = read_rollup_manifest(self._rolled)
        return known

    def write_waits(self) -> None:
        """Write the tables of `waits`. Raises NothingToReadError without outcomes."""
        write_waits(self.connection, self.rollups(), self.tables, self.on_progress)

    def failed_jobs(self) -> FailedJobs:
        """Return the failed jobs by kind. Raises NothingToReadError without outcomes."""
        return failed_jobs(self.connection, self.rollups())


def correctable_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a sentence is enough for."""
    return (PurgatoryError, ValueError, OSError, duckdb.Error, *spark_errors())


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database, with half of this machine's memory."""
    half = max(_LEAST_MEMORY, (machine_memory() or 2 * _LEAST_MEMORY) // 2)
    return connected(memory=f"{half // 2**20}MiB")


def is_for_one_process(spark: SparkSession, table: Folder, operations: Sequence[int]) -> bool:
    """Return whether DuckDB, in this process, rolls up the hours of `table` also for Spark.

    `operations` are those of each hour: few take DuckDB less time than Spark takes to plan. Many
    take a third of Spark's time if it runs on this machine, unless an hour is so large that DuckDB
    may lack the memory to spill it. A cluster aggregates where the rows are.
    """
    from pyspark.sql import is_remote

    if sum(operations) < FEW_RECORDS:
        return True
    # The master of Spark Connect is that of its server, wherever that is.
    is_here = not is_remote() and str(spark.conf.get("spark.master", None)).startswith("local")
    return is_here and isinstance(table, LocalFolder) and max(operations) <= _LARGEST_HOUR


def check_engine(options: argparse.Namespace) -> None:
    """Raise ValueError if DuckDB is asked for where it cannot run."""
    if getattr(options, "engine", None) != EngineName.DUCKDB:
        return
    for path in _paths(options):
        if (scheme := _scheme(path)) not in ("", *SCHEMES):
            raise ValueError(
                f'{path} has the scheme "{scheme}": give a local folder, or one of '
                f"{', '.join(SCHEMES)}"
            )
    if options.master is not None:
        raise ValueError("--master is for Spark: leave it out, or give --engine spark")


def is_for_duckdb(run: Run) -> bool:
    """Return whether DuckDB computes the tables of a run.

    Files are listed if the size of what is new decides. Raises PipelineError for a folder that
    cannot be listed.
    """
    options = run.options
    name: str | None = getattr(options, "engine", None)
    if name in (None, EngineName.SPARK):
        return False
    if name == EngineName.DUCKDB:
        return True
    if options.master is not None or not _OTHER_SPARK.isdisjoint(os.environ):
        return False
    # Other addresses are those of a cluster, or of Spark's own file systems.
    if any(_scheme(path) not in ("", *_ARROW_ONLY) for path in _paths(options)):
        return False
    return run.bytes * _SHARE_OF_MEMORY <= (machine_memory() or 0)


def is_short(run: Run) -> bool:
    """Return whether a Spark of this machine reads so little that its start takes longest."""
    options = run.options
    if not hasattr(options, "engine") or not _OTHER_SPARK.isdisjoint(os.environ):
        return False
    is_here = options.master is None or options.master.startswith("local")
    return is_here and run.bytes < _SHORT_BYTES


def _paths(options: argparse.Namespace) -> list[str]:
    return [path for path in (getattr(options, "journal", None), options.out) if path]


def _scheme(path: str) -> str:
    return "" if is_local(path) else path.partition("://")[0]
