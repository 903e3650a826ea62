"""The job `report`: writes the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report import DEFAULT_TITLE
from purgatory.pipeline.report.changes import (
    RunSummary,
    as_json,
    changes,
    previous_of,
    summary_of,
)
from purgatory.pipeline.report.charts import (
    Chart,
    HourlyLoad,
    hourly_load,
    lateness_chart,
    outcomes_chart,
    parked_chart,
    percentiles_chart,
    survival_chart,
    wait_heat_map,
    waits_chart,
)
from purgatory.pipeline.report.findings import Findings, Rows, findings
from purgatory.pipeline.report.page import Part, page
from purgatory.pipeline.report.verdict import verdict
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.selection import Examples

JOB = "report"
PAGE = "report.html"
SUMMARY = "summary.json"


def run(
    manifest: Manifest,
    tables: Tables,
    targets: Targets,
    title: str = DEFAULT_TITLE,
    journal: str | None = None,
    *,
    failed_jobs: Callable[[], Rows] = tuple,
    examples: Examples | None = None,
    against: tuple[str, RunSummary] | None = None,
) -> tuple[str, list[str]]:
    """Write the report on the outcomes of `manifest`; return its path, and what misses `targets`.

    `journal` is where the records were read from; `failed_jobs` returns the rows of
    `Findings.failed_jobs`. The report is compared with the one that it replaces, or with the
    summary and the name in `against`. `examples` are those of the selection that it is on.

    Raises NothingToReadError if an earlier job has not run.
    """
    found = findings(manifest, tables, failed_jobs)
    now = summary_of(found, journal)
    before = against[1] if against else _previous(tables, now)
    if journal is None and before is not None:
        now = replace(now, journal=before.journal)
    compared = None if before is None else changes(now, before, against[0] if against else "")
    judged = verdict(found, targets)
    content = page(
        *(found, judged, list(parts_of(found)), compared),
        title=title,
        journal=now.journal,
        examples=examples,
    )

    def fill(new: str) -> None:
        tables.folder.write_bytes(f"{new}/{PAGE}", content.encode())
        tables.folder.write_bytes(f"{new}/{SUMMARY}", as_json(now, before).encode())

    tables.fill(JOB, fill)
    return tables.folder.named(f"{JOB}/{PAGE}"), list(map(str, judged.missed))


def parts_of(found: Findings) -> Iterator[Part]:
    """Return the parts of the report that have operations."""
    for is_jobs, name, title in (
        (False, "requests", "Parked requests"),
        (True, "jobs", "Delayed jobs"),
    ):
        of_part = found.part(jobs=is_jobs)
        if of_part.by_kind or not is_jobs:
            load = hourly_load(of_part)
            yield Part(name, title, of_part, load, charts(of_part, load, is_jobs=is_jobs))


def charts(found: Findings, load: HourlyLoad, *, is_jobs: bool) -> list[Chart]:
    """Return the charts of a part that have data.

    What jobs wait for is not cut short by a timeout, so they have no curve of survival.
    """
    drawn = (
        outcomes_chart(found),
        percentiles_chart(found),
        wait_heat_map(found),
        parked_chart(found, load),
        waits_chart(found),
        None if is_jobs else survival_chart(found),
        lateness_chart(found),
    )
    return [chart for chart in drawn if chart is not None]


def _previous(tables: Tables, now: RunSummary) -> RunSummary | None:
    path = f"{JOB}/{SUMMARY}"
    return previous_of(tables.folder.read_text(path) if tables.folder.exists(path) else None, now)
