"""The table of outcomes updated and read by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import duckdb

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.duck import outcome_sql as sql
from purgatory.pipeline.duck.connection import (
    address,
    addresses,
    attach,
    new_address,
    parquet,
    text,
)
from purgatory.pipeline.errors import BadFileError
from purgatory.pipeline.outcomes.event_summary import EventSummary, from_micros, summary_of_rows
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.manifest import Known, future_folder, run_folder
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.outcomes.update_run import UpdateRun
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.folders import folder_at


class DuckUpdateRun(UpdateRun):
    """A run on DuckDB, in this process."""

    errors = (duckdb.Error,)

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: Folder,
        journal: Folder,
        on_progress: OnProgress,
        limit: datetime,
        known: Known | None = None,
    ) -> None:
        super().__init__(table, attach(connection, journal), on_progress, limit, known)
        self._connection = connection

    def _damaged(
        self, error: Exception, rows: Mapping[str, int], on_bad_file: OnBadFile
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in rows:
            events = sql.events_of_files([address(self._journal, path)])
            try:
                self._connection.execute(f"SELECT max(hash(COLUMNS(*))) FROM ({events})").fetchall()
            except duckdb.Error as cause:
                found[path] = f"damaged: {str(cause).splitlines()[0]}"
                if on_bad_file is OnBadFile.REFUSE:
                    break
        if found:
            return found
        if isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
            raise BadFileError(
                f"{str(error).splitlines()[0]}. It belongs to the outcomes, not to the journal, or "
                f"the disk is full: delete {self._table} and run again on the whole journal."
            ) from error
        raise error

    def _events(self, paths: Sequence[str], rows: int) -> str:
        parts = [sql.no_events()]
        if paths:
            parts.append(sql.events_of_files([address(self._journal, path) for path in paths]))
        if (run := self._before.future_run) is not None:
            parts.append(sql.events_of_files(addresses(self._table, future_folder(run))))
        if self._is_repair:
            parts.append(sql.events_of_outcomes(self._known(self._before.paths()), self._limit))
        union = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {sql.EVENTS} AS {union}")
        return sql.EVENTS

    def _summary(self, events: str) -> EventSummary:
        return summary_of_rows(self._rows(sql.summary(self._limit)))

    def _latest_known(self) -> datetime | None:
        past = sql.past_outcomes(self._known(self._before.paths()), self._limit)
        micros = self._connection.execute(
            f"SELECT epoch_us(max(coalesce(completed_at, watched_at))) FROM ({past})"
        ).fetchall()[0][0]
        return None if micros is None else from_micros(micros)

    def _write_future(self, events: str) -> None:
        self._copy(sql.future_events(self._limit), f"{future_folder(self._name)}/part-0.parquet")

    def _write(
        self, events: str, hours: set[str], rows: int, as_of: datetime, grace_s: float
    ) -> None:
        known = None
        if paths := self._before.paths(hours):
            known = self._known(paths)
            if self._is_repair:
                known = f"({sql.past_outcomes(known, self._limit)})"
        self._copy(
            sql.outcomes(known, self._limit, as_of, grace_s),
            run_folder(self._name),
            ", PARTITION_BY (date, hour)",
        )

    def _described(self) -> list[dict[str, Any]]:
        written = addresses(self._table, run_folder(self._name))
        return self._rows(sql.described(parquet(written))) if written else []

    def _known(self, folders: Sequence[str]) -> str:
        return parquet(addresses(self._table, *folders))

    def _copy(self, query: str, path: str, options: str = "") -> None:
        place = text(new_address(self._table, path))
        self._connection.execute(
            f"COPY ({query}) TO {place} (FORMAT parquet, COMPRESSION zstd{options})"
        )

    def _rows(self, query: str) -> list[dict[str, Any]]:
        found = self._connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


class DuckOutcomeTable(OutcomeTable):
    """An OutcomeTable without Spark; `read` is not available."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self.connection = connection
        self.folder = attach(connection, folder_at(path))

    def _run(
        self, journal: str, on_progress: OnProgress, limit: datetime, known: Known | None
    ) -> UpdateRun:
        place = folder_at(journal)
        return DuckUpdateRun(self.connection, self.folder, place, on_progress, limit, known)
