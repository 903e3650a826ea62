"""The job `report`: writes the page and, if asked to, each chart as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report import DEFAULT_TITLE
from purgatory.pipeline.report.changes import (
    RunSummary,
    as_json,
    changes,
    previous_of,
    summary_of,
)
from purgatory.pipeline.report.charts.chart_data import Chart
from purgatory.pipeline.report.charts.time_charts import (
    HourlyLoad,
    hot_keys_chart,
    hourly_load,
    outcomes_chart,
    parked_chart,
)
from purgatory.pipeline.report.charts.wait_charts import (
    lateness_chart,
    percentiles_chart,
    survival_chart,
    wait_heat_map,
    waits_chart,
)
from purgatory.pipeline.report.findings import Findings, Rows, findings
from purgatory.pipeline.report.page import Part, page
from purgatory.pipeline.spark.folders import Tables

JOB = "report"
PAGE = "report.html"
SUMMARY = "summary.json"


def run(
    manifest: Manifest,
    tables: Tables,
    on_progress: OnProgress,
    title: str = DEFAULT_TITLE,
    journal: str | None = None,
    *,
    failed_jobs: Callable[[], Rows] = tuple,
    has_chart_files: bool = False,
) -> str:
    """Write the report on the outcomes of `manifest`, and return the path of the page.

    `journal` is where the records were read from; `failed_jobs` returns the rows of
    `Findings.failed_jobs`; with `has_chart_files` each chart is also a file beside the page, which
    takes longer than all else. The report is compared with the one that it replaces.

    Raises NothingToReadError if an earlier job has not run.
    """
    found = findings(manifest, tables, failed_jobs)
    now = summary_of(found, journal)
    before = _previous(tables, now)
    if journal is None and before is not None:
        now = replace(now, journal=before.journal)
    compared = None if before is None else changes(now, before)
    parts = list(parts_of(found))
    content = page(
        found,
        parts,
        compared,
        title=title,
        journal=now.journal,
        has_chart_files=has_chart_files,
    )

    def fill(new: str) -> None:
        tables.folder.write_bytes(f"{new}/{PAGE}", content.encode())
        tables.folder.write_bytes(f"{new}/{SUMMARY}", as_json(now, before).encode())
        if has_chart_files:
            for name, drawing in _drawn(files_of(found, parts), on_progress):
                tables.folder.write_bytes(f"{new}/{name}", drawing)

    tables.fill(JOB, fill)
    return tables.folder.named(f"{JOB}/{PAGE}")


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
    prefix = "jobs-" if is_jobs else ""
    return [replace(chart, name=f"{prefix}{chart.name}") for chart in drawn if chart is not None]


def files_of(found: Findings, parts: list[Part]) -> list[Chart]:
    """Return the charts that are written as files."""
    keys = hot_keys_chart(found)
    return [chart for part in parts for chart in part.charts] + ([keys] if keys else [])


def _drawn(charts: Iterable[Chart], on_progress: OnProgress) -> Iterator[tuple[str, bytes]]:
    # Imported here: it takes longer than a report without these files.
    from purgatory.pipeline.report.charts.drawing import chart_files

    for chart in charts:
        on_progress(f"report: {chart.name}")
        for suffix, drawing in chart_files(chart).items():
            yield f"{chart.name}.{suffix}", drawing


def _previous(tables: Tables, now: RunSummary) -> RunSummary | None:
    path = f"{JOB}/{SUMMARY}"
    return previous_of(tables.folder.read_text(path) if tables.folder.exists(path) else None, now)
