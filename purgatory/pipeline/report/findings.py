"""The input of the report: small tables, whatever the size of the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.pipeline.advise.advice import FILE as ADVICE_FILE
from purgatory.pipeline.advise.advice import JOB as ADVICE
from purgatory.pipeline.advise.advice import is_job, waits_of_kinds
from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.statistics.survival import Step, kaplan_meier
from purgatory.pipeline.waits.wait_tables import JOB as WAITS

Rows = Sequence[Mapping[str, Any]]

SHOWN_KINDS = 8
"""More curves cannot be distinguished; the tables have all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The tables of the earlier jobs, the advice, and the manifest of the outcomes."""

    manifest: Manifest
    by_kind: Rows
    """The kind with most operations first."""
    by_key_prefix: Rows
    hot_keys: Rows
    parked: Rows
    """Without delayed jobs, which wait in their store."""
    timeline: Rows
    wait_counts: Rows
    lateness_counts: Rows
    survival: Mapping[str, Sequence[Step]]
    advice: Mapping[str, Any]

    @property
    def kinds(self) -> list[str]:
        """The kinds that charts show."""
        return [row["kind"] for row in self.by_kind[:SHOWN_KINDS]]

    @property
    def left_out(self) -> str:
        """A sentence, after a blank, on the kinds that charts do not show; "" if they show all."""
        if len(self.by_kind) <= SHOWN_KINDS:
            return ""
        return f" Shown are the {SHOWN_KINDS} of {len(self.by_kind):,} kinds with most operations."

    @property
    def operations(self) -> int:
        """The number of all operations."""
        return sum(row["operations"] for row in self.by_kind)

    def sum_of(self, column: str) -> int:
        """Return the sum of a column over all kinds."""
        return sum(row[column] for row in self.by_kind)


def findings(outcome_table: OutcomeTable, tables: Tables) -> Findings:
    """Read the input. Raises NothingToReadError, which names the job that has not run."""
    wait_counts = tables.rows(WAITS, "wait_counts")
    path = f"{ADVICE}/{ADVICE_FILE}"
    if not tables.folder.exists(path):
        raise NothingToReadError(f"No {path} in {tables.folder}: run the job `advise` first.")
    return Findings(
        manifest=outcome_table.manifest(),
        by_kind=_most_first(tables.rows(WAITS, "by_kind"), "kind"),
        by_key_prefix=_most_first(tables.rows(WAITS, "by_key_prefix"), "key_prefix"),
        hot_keys=_most_first(tables.rows(WAITS, "hot_keys"), "key"),
        parked=[row for row in tables.rows(WAITS, "parked") if not is_job(row)],
        timeline=tables.rows(WAITS, "timeline"),
        wait_counts=wait_counts,
        lateness_counts=tables.rows(WAITS, "lateness_counts"),
        survival={kind: kaplan_meier(waits) for kind, waits in waits_of_kinds(wait_counts).items()},
        advice=json.loads(tables.folder.read_text(path)),
    )


def _most_first(rows: Rows, name: str) -> Rows:
    return sorted(rows, key=lambda row: (-row["operations"], row[name]))
