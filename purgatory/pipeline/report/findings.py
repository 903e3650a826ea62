"""The input of the report: small tables, whatever the size of the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from purgatory.pipeline.advise.advice import FILE as ADVICE_FILE
from purgatory.pipeline.advise.advice import JOB as ADVICE
from purgatory.pipeline.advise.advice import is_job, survival_of
from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.rollups.wait_tables import JOB as WAITS
from purgatory.pipeline.rollups.wait_tables import Relation, relation
from purgatory.pipeline.schemas import JOB_KIND
from purgatory.pipeline.sql.values import text
from purgatory.pipeline.statistics import Step

if TYPE_CHECKING:
    from purgatory.pipeline.run import Run

Rows = Sequence[Mapping[str, Any]]

SHOWN_KINDS = 8
"""More curves cannot be distinguished; the tables have more kinds."""

LISTED_KINDS = 100
"""The rows of a table by kind: a page has a size that a phone can open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The tables of the earlier jobs, the advice, and the manifest of the outcomes."""

    manifest: Manifest
    by_kind: Rows
    """The kind with most operations first."""
    polls: Rows = ()
    """The same columns but for lateness, of each poll of a wait for itself."""
    by_key_prefix: Rows
    hot_keys: Rows
    parked: Relation
    by_hour: Relation
    """In each part of all kinds."""
    timeline: Relation
    wait_counts: Rows
    lateness_counts: Rows
    survival: Mapping[str, Sequence[Step]]
    advice: Mapping[str, Any]
    failed_jobs: Rows = ()
    """Kind, number and latest error of the jobs that failed; most first."""

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

    def part(self, *, jobs: bool) -> Findings:
        """Return the findings on delayed jobs, which wait in their store, or on all others.

        Hot keys and key prefixes are not known by kind, so each part has all of them.
        """

        def of_part(rows: Rows) -> Rows:
            return [row for row in rows if is_job(row) is jobs]

        condition = f"starts_with(kind, {text(JOB_KIND)}) = {jobs}"
        return replace(
            self,
            by_kind=of_part(self.by_kind),
            parked=self.parked.filter(condition),
            timeline=self.timeline.filter(condition),
            wait_counts=of_part(self.wait_counts),
            lateness_counts=of_part(self.lateness_counts),
            failed_jobs=self.failed_jobs if jobs else (),
        )

    @property
    def failed(self) -> int:
        """The number of jobs that failed."""
        return sum(row["jobs"] for row in self.failed_jobs)

    def sum_of(self, column: str) -> int:
        """Return the sum of a column over all kinds."""
        return sum(row[column] for row in self.by_kind)


def findings(run: Run) -> Findings:
    """Read the input. Raises NothingToReadError, which names the job that has not run."""
    tables = run.tables
    by_kind = tables.rows(WAITS, "by_kind")
    path = f"{ADVICE}/{ADVICE_FILE}"
    if not tables.folder.exists(path):
        raise NothingToReadError(f"No {path} in {tables.folder}: run the job `advise` first.")
    return Findings(
        manifest=run.manifest,
        by_kind=by_kind,
        polls=tables.rows(WAITS, "polls"),
        by_key_prefix=tables.rows(WAITS, "by_key_prefix"),
        hot_keys=tables.rows(WAITS, "hot_keys"),
        parked=relation(tables, "parked"),
        by_hour=relation(tables, "by_hour"),
        timeline=relation(tables, "timeline"),
        wait_counts=tables.rows(WAITS, "wait_counts"),
        lateness_counts=tables.rows(WAITS, "lateness_counts"),
        survival=survival_of(tables),
        advice=json.loads(tables.folder.read_text(path)),
        # Without jobs, rollups are not read for them.
        failed_jobs=run.failed_jobs() if any(map(is_job, by_kind)) else (),
    )
