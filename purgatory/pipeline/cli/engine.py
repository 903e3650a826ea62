"""Engines: what computes the tables of a command."""

from __future__ import annotations

import argparse
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession, is_remote

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.duck.connection import connected
from purgatory.pipeline.duck.duck_table import DuckOutcomeTable
from purgatory.pipeline.outcomes.manifest import (
    Known,
    Manifest,
    check_has_hours,
    newest_run,
    read_manifest,
)
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.outcomes.outcomes import FEW_RECORDS
from purgatory.pipeline.rollups.hour_rollups import DuckRollupRun, SparkRollupRun
from purgatory.pipeline.rollups.rollup_files import RollupManifest, Rollups, read_rollup_manifest
from purgatory.pipeline.rollups.rollups import FOLDER, RollupRun
from purgatory.pipeline.rollups.wait_tables import (
    FailedJobs,
    failed_jobs,
    write_waits,
)
from purgatory.pipeline.spark.folder import Folder, LocalFolder
from purgatory.pipeline.spark.folders import SCHEMES, Tables, folder_at, is_local
from purgatory.pipeline.spark.session import REMOTE_VARIABLE, SPARK_ERRORS


class Manifests:
    """Reads each manifest once, until another run has published: after a year they are large.

    What is returned must not be changed.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._outcomes: dict[str, Manifest] = {}
        self._rollups: dict[str, RollupManifest] = {}

    def outcomes(self, path: str) -> Manifest:
        """Return the valid manifest of the outcomes below `path`."""
        folder = folder_at(f"{path}/outcomes")
        known = self._outcomes.get(path)
        if known is None or known.run != newest_run(folder):
            known = self._outcomes[path] = read_manifest(folder)
        return known

    def rollups(self, path: str) -> RollupManifest:
        """Return the manifest of the rollups below `path`."""
        folder = folder_at(f"{path}/{FOLDER}")
        known = self._rollups.get(path)
        if known is None or known.run != newest_run(folder):
            known = self._rollups[path] = read_rollup_manifest(folder)
        return known

    def put(self, path: str, outcomes: Manifest) -> None:
        """Use the manifest that a run has published."""
        self._outcomes[path] = outcomes


class Work:
    """What a command with these options has to read, listed once and only if it is used.

    Raises PipelineError for a folder that cannot be listed.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Use the options --journal and --out."""
        self._options = options
        self.manifests = Manifests()

    @cached_property
    def known(self) -> Known:
        """The files of the journal, which the command has."""
        manifest = self.manifests.outcomes(self._options.out)
        return Known.of(manifest, folder_at(self._options.journal))

    @cached_property
    def bytes(self) -> int:
        """The size of the new files of the journal, and of the outcomes without rollups.

        What earlier runs have read is not read again, whatever its size.
        """
        size = self.known.bytes if self._options.journal else 0
        if self._options.needs_rollups:
            size += self._bytes_of_stale_hours()
        return size

    def _bytes_of_stale_hours(self) -> int:
        out = self._options.out
        manifest = self.manifests.outcomes(out)
        stale = self.manifests.rollups(out).stale_hours(manifest)
        outcomes = folder_at(f"{out}/outcomes")
        return sum(
            file.size for path in manifest.paths(stale) for file in outcomes.files(".parquet", path)
        )


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


ENGINE_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, duckdb.Error)
"""Errors that `error_message` turns into a sentence."""


class EngineName(StrEnum):
    """What computes the tables."""

    AUTO = "auto"
    """DuckDB if what is new fits into this machine's memory, unless --master is given."""
    SPARK = "spark"
    DUCKDB = "duckdb"


class Engine(ABC):
    """Reads and writes the tables of the jobs `outcomes`, `waits`, `advise` and `report`.

    `connection` is to DuckDB, which merges rollups for both engines: they are small, whatever the
    size of the outcomes. An engine serves one command, and reads a manifest or a table once: they
    are large after a year of hours.
    """

    def __init__(self, manifests: Manifests | None = None) -> None:
        self._manifests = manifests or Manifests()
        self._rollups: dict[str, tuple[int, Rollups]] = {}
        self._tables: dict[str, Tables] = {}

    @property
    @abstractmethod
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to DuckDB."""

    @abstractmethod
    def outcome_table(self, path: str) -> OutcomeTable:
        """Return the table of outcomes below `path`."""

    def failed_jobs(self, path: str, on_progress: OnProgress) -> FailedJobs:
        """Return the failed jobs by kind. Raises NothingToReadError without outcomes."""
        return failed_jobs(self.connection, self.rollups(path, on_progress))

    def tables(self, path: str) -> Tables:
        """Return the other tables below `path`."""
        return self._tables.setdefault(path, Tables(path))

    def manifest(self, path: str) -> Manifest:
        """Return the valid manifest of the outcomes below `path`, which must not be changed."""
        return self._manifests.outcomes(path)

    def rollups(self, path: str, on_progress: OnProgress) -> Rollups:
        """Bring the rollups below `path` up to date, and return them.

        Raises NothingToReadError without outcomes.
        """
        table, manifest = self.outcome_table(path), self.manifest(path)
        check_has_hours(table.folder, manifest)
        run, found = self._rollups.get(path, (0, None))
        if found is None or run != manifest.run:
            folder = folder_at(f"{path}/{FOLDER}")
            before = self._manifests.rollups(path)
            found = self._rollup_run(folder, table.folder, manifest, on_progress, before).update()
            self._rollups[path] = manifest.run, found
        return found

    def write_waits(self, path: str, on_progress: OnProgress) -> None:
        """Write the tables of `waits` below `path`. Raises NothingToReadError without outcomes."""
        found = self.rollups(path, on_progress)
        write_waits(self.connection, found, self.tables(path), on_progress)

    @abstractmethod
    def _rollup_run(
        self,
        folder: Folder,
        table: Folder,
        manifest: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> RollupRun:
        """Return a run that brings the rollups in `folder` up to date with outcomes in `table`."""


class SparkEngine(Engine):
    """Spark, for any size and any place."""

    def __init__(self, spark: SparkSession, manifests: Manifests | None = None) -> None:
        """Use a session, and `manifests` if some may be read already."""
        super().__init__(manifests)
        self._spark = spark

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to DuckDB, opened at its first use: not all commands merge rollups."""
        return connected()

    def outcome_table(self, path: str) -> OutcomeTable:
        """Return the table of outcomes below `path`."""
        return OutcomeTable(self._spark, f"{path}/outcomes")

    def _rollup_run(
        self,
        folder: Folder,
        table: Folder,
        manifest: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> RollupRun:
        spark, connection = self._spark, self.connection
        operations = [manifest.hours[hour].operations for hour in before.stale_hours(manifest)]
        if is_for_one_process(spark, table, operations):
            return DuckRollupRun(connection, folder, table, manifest, on_progress, before)
        return SparkRollupRun(spark, connection, folder, table, manifest, on_progress, before)


class DuckEngine(Engine):
    """DuckDB, in this process."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, manifests: Manifests | None = None
    ) -> None:
        """Use a connection, and `manifests` if some may be read already."""
        super().__init__(manifests)
        self._connection = connection

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to DuckDB."""
        return self._connection

    def outcome_table(self, path: str) -> DuckOutcomeTable:
        """Return the table of outcomes below `path`."""
        return DuckOutcomeTable(self.connection, f"{path}/outcomes")

    def _rollup_run(
        self,
        folder: Folder,
        table: Folder,
        manifest: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> RollupRun:
        return DuckRollupRun(self.connection, folder, table, manifest, on_progress, before)


def duck_engine(manifests: Manifests | None = None) -> DuckEngine:
    """Return an engine on a new database in memory, with half of this machine's memory."""
    half = max(_LEAST_MEMORY, (machine_memory() or 2 * _LEAST_MEMORY) // 2)
    return DuckEngine(connected(memory=f"{half // 2**20}MiB"), manifests)


def is_for_one_process(spark: SparkSession, table: Folder, operations: Sequence[int]) -> bool:
    """Return whether DuckDB, in this process, rolls up the hours of `table` also for Spark.

    `operations` are those of each hour: few take DuckDB less time than Spark takes to plan. Many
    take a third of Spark's time if it runs on this machine, unless an hour is so large that DuckDB
    may lack the memory to spill it. A cluster aggregates where the rows are.
    """
    if sum(operations) < FEW_RECORDS:
        return True
    # The master of Spark Connect is that of its server, wherever that is.
    is_here = not is_remote() and str(spark.conf.get("spark.master", None)).startswith("local")
    return is_here and isinstance(table, LocalFolder) and max(operations) <= _LARGEST_HOUR


def check_engine(options: argparse.Namespace) -> None:
    """Raise ValueError if DuckDB is asked for where it cannot run."""
    if getattr(options, "engine", None) is not EngineName.DUCKDB:
        return
    for path in _paths(options):
        if (scheme := _scheme(path)) not in ("", *SCHEMES):
            raise ValueError(
                f'{path} has the scheme "{scheme}": give a local folder, or one of '
                f"{', '.join(SCHEMES)}"
            )
    if options.master is not None:
        raise ValueError("--master is for Spark: leave it out, or give --engine spark")


def is_for_duckdb(options: argparse.Namespace, work: Work) -> bool:
    """Return whether DuckDB computes the tables of a command with these `options`.

    `work` is listed if the size of what is new decides.
    Raises PipelineError for a folder that cannot be listed.
    """
    name: EngineName | None = getattr(options, "engine", None)
    if name in (None, EngineName.SPARK):
        return False
    if name is EngineName.DUCKDB:
        return True
    if options.master is not None or not _OTHER_SPARK.isdisjoint(os.environ):
        return False
    # Other addresses are those of a cluster, or of Spark's own file systems.
    if any(_scheme(path) not in ("", *_ARROW_ONLY) for path in _paths(options)):
        return False
    return work.bytes * _SHARE_OF_MEMORY <= (machine_memory() or 0)


def is_short(options: argparse.Namespace, work: Work) -> bool:
    """Return whether a Spark of this machine reads so little that its start takes longest."""
    if not hasattr(options, "engine") or not _OTHER_SPARK.isdisjoint(os.environ):
        return False
    is_here = options.master is None or options.master.startswith("local")
    return is_here and work.bytes < _SHORT_BYTES


def _paths(options: argparse.Namespace) -> list[str]:
    return [path for path in (getattr(options, "journal", None), options.out) if path]


def _scheme(path: str) -> str:
    return "" if is_local(path) else path.partition("://")[0]
