"""The job `report`: writes the page, one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.console import duration, percent
from purgatory.pipeline.report.changes import (
    Changes,
    RunSummary,
    as_json,
    changes,
    previous_of,
    summary_of,
)
from purgatory.pipeline.report.chart_data import as_script, chart_data
from purgatory.pipeline.report.charts import (
    Chart,
    lateness_chart,
    outcomes_chart,
    parked_chart,
    percentiles_chart,
    survival_chart,
    wait_heat_map,
    waits_chart,
)
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings, findings
from purgatory.pipeline.report.sections import (
    advice_section,
    changes_section,
    examples_section,
    read_section,
    verdict_section,
)
from purgatory.pipeline.report.tables import (
    SHOWN_PREFIXES,
    HourlyLoad,
    cells,
    failed_jobs_table,
    folded,
    hot_keys_table,
    hourly_load,
    hours_table,
    outcome_waits_table,
    table,
    waits_table,
)
from purgatory.pipeline.report.verdict import Verdict, verdict
from purgatory.pipeline.rollups.rollup_files import hour_start
from purgatory.pipeline.rollups.wait_tables import rows_of
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.selection import Examples

if TYPE_CHECKING:
    from purgatory.pipeline.run import Run

JOB = "report"
PAGE = "report.html"
SUMMARY = "summary.json"
DEFAULT_TITLE = "What waited, and for how long"

_STYLES = ("uplot.css", "report.css")
_SCRIPTS = ("uplot.js", "format.js", "counts.js", "charts.js", "heat_map.js", "report.js")
_COUNTED_JOBS = (
    '<p class="faint">A job is counted once it has ended, one that waits again for each round. '
    "Jobs that wait, run, or are to be tried again after a failure are not in these figures: "
    "<code>purgatory jobs list</code> shows them. Cancelled are also those that a fire cancelled "
    "(<code>on_fire=cancel</code>). Fired or expired is how the wait of the others ended, whether "
    "they failed then or not.</p>"
)
_POLLS = "Polls, each for itself: those of one wait are one operation in all other figures"
_WIDE = {"outcomes", "percentiles", "heat", "parked"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the report: parked requests, or delayed jobs."""

    name: str
    title: str
    findings: Findings
    load: HourlyLoad
    charts: Sequence[Chart]
    """All of its charts; the page has those of `_WIDE` first."""


def page(
    findings: Findings,
    verdict: Verdict,
    parts: Sequence[Part],
    changes: Changes | None,
    *,
    title: str,
    journal: str | None,
    examples: Examples | None = None,
) -> str:
    """Return the report as HTML; `examples` are those of the selection that it is on, if any."""
    selected = "" if examples is None else str(examples.selection)
    styles = [_file(name) for name in _STYLES]
    scripts = [_file(name) for name in _SCRIPTS]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, styles)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}, {_covered(findings)}</title>",
            *(f"<style>{style}</style>" for style in styles),
            "</head><body>",
            '<a class="skip" href="#verdict">Skip to the verdict</a>',
            _head(findings, parts, title, selected),
            "<main>",
            '<div class="two">',
            verdict_section(verdict),
            changes_section(changes),
            f'<section id="read" class="card"><h2>What was read</h2>'
            f"{read_section(findings, journal)}</section>",
            "</div>",
            *map(_part, parts),
            _section("slowest", "Slowest", examples_section(examples)) if examples else "",
            _section("keys", "Keys", f'<div class="card">{_keys(findings)}</div>'),
            _section("advice", "Advice", advice_section(findings.advice)),
            "</main>",
            '<div id="tip" class="tip" role="status" aria-live="polite" hidden></div>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>",
            "",
        ]
    )


def _file(name: str) -> str:
    return (files("purgatory.pipeline.report") / "static" / name).read_text("utf-8")


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the policy: these scripts and styles, and no request at all.

    What a key is called stays text, even if the page had a fault.
    """
    return (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        f"style-src {' '.join(map(_hash, styles))}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _covered(findings: Findings) -> str:
    """Return the minutes in which the operations began to wait, or the steps of the charts."""
    hours = [hour_start(hour) for hour in sorted(findings.manifest.hours)]
    first, last = hours[0], hours[-1] + timedelta(minutes=59)
    seconds = "min(epoch_us(start)) // 1000000, max(epoch_us(start)) // 1000000"
    [(start_s, end_s, width_s)] = rows_of(
        findings.timeline, f"SELECT {seconds}, max(width_s) FROM found"
    )
    if width_s:
        first = max(first, datetime.fromtimestamp(start_s, UTC))
        last = min(last, datetime.fromtimestamp(end_s + width_s - 60, UTC))
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def _head(findings: Findings, parts: Sequence[Part], title: str, selected: str) -> str:
    links = [(part.name, part.title) for part in parts]
    slowest = [("slowest", "Slowest")] if selected else []
    links = [("read", "What was read"), *links, *slowest, ("keys", "Keys"), ("advice", "Advice")]
    of = f". A part of them: {escape(selected)}" if selected else ""
    anchors = "".join(f'<a href="#{name}">{text}</a>' for name, text in links)
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _tiles(findings, parts)
    )
    return (
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="faint">Operations that began to wait from {_covered(findings)}{of}</p>'
        f'<nav aria-label="Sections">{anchors}</nav>'
        f'<dl class="tiles">{tiles}</dl></header>'
    )


def _tiles(findings: Findings, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    for part in parts:
        yield part.title.lower(), f"{part.findings.operations:,}"
    # Not of jobs: one that runs at its deadline, as most do, has expired.
    requests = parts[0].findings
    for name in ("fired", "expired", "cancelled", "drained", "outdated", "lost"):
        if count := requests.sum_of(name):
            yield f"{name} requests", percent(count / requests.operations, 1)
    for jobs in parts[1:]:
        if cancelled := jobs.findings.sum_of("cancelled"):
            yield "cancelled jobs", f"{cancelled:,}"
    if findings.failed:
        yield "failed jobs", f"{findings.failed:,}"
    longest = findings.by_kind[0] if findings.by_kind else None
    if longest and longest["wait_us_p99"] is not None:
        yield f"p99 of {longest['kind']}", duration(longest["wait_us_p99"])


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _part(part: Part) -> str:
    found = part.findings
    waits = waits_table(found.by_kind[:LISTED_KINDS], "kind", "By kind")
    failed = failed_jobs_table(found)
    polls = waits_table(found.polls, "kind", _POLLS) if found.polls and part.name != "jobs" else ""
    tables = f'<div class="card">{failed}{waits}{outcome_waits_table(found)}{polls}</div>'
    hours = hours_table(part.load)
    figures = {chart.name: _figure(chart, part, hours) for chart in part.charts}
    wide = "".join(figures.pop(chart.name) for chart in part.charts if chart.name in _WIDE)
    data = as_script(chart_data(found))
    return (
        f'<section id="{part.name}" class="part" data-part="{part.name}"><h2>{part.title}</h2>'
        f'{_COUNTED_JOBS if part.name == "jobs" else ""}<div class="filters card" hidden></div>'
        '<noscript><p class="notice">Charts need scripts. Their figures are in the tables.</p>'
        "</noscript>"
        f'{wide}<div class="charts">{"".join(figures.values())}</div>{tables}'
        f'<script type="application/json">{data}</script></section>'
    )


def _figure(chart: Chart, part: Part, hours: str) -> str:
    kind, name = chart.name, f"jobs-{chart.name}" if part.name == "jobs" else chart.name
    rows = (cells(*row) for row in chart.rows)
    found = table(chart.header, rows, chart.title, is_cards=False)
    return (
        f'<figure id="{name}-figure" class="card {kind}"><h3 id="{name}-title">'
        f"{escape(chart.title)}</h3>"
        f'<div class="plot" data-chart="{kind}" tabindex="0" role="group" '
        f'aria-roledescription="chart" aria-labelledby="{name}-title" '
        f'aria-describedby="{name}-summary"></div>{hours if kind == "parked" else ""}'
        f'<figcaption id="{name}-summary">{escape(chart.summary)}</figcaption>'
        f"{folded('The figures', found)}</figure>"
    )


def _keys(findings: Findings) -> str:
    prefixes = findings.by_key_prefix[:SHOWN_PREFIXES]
    by_prefix = waits_table(prefixes, "key_prefix", "By key prefix")
    hot = hot_keys_table([row for row in findings.hot_keys if not row["is_job"]])
    of_jobs = [row for row in findings.hot_keys if row["is_job"]]
    jobs = f"<h3>Hot keys of jobs</h3>{hot_keys_table(of_jobs)}" if of_jobs else ""
    find = '<p class="find" hidden></p>'
    return f"<h3>Hot keys</h3>{find}{hot}{jobs}<h3>Key prefixes</h3>{by_prefix}"


def write(
    run: Run, examples: Examples | None = None, against: tuple[str, RunSummary] | None = None
) -> tuple[str, list[str]]:
    """Write the report of a run; return its path, and what misses the targets.

    It is compared with the one that it replaces, or with the summary and the name in `against`.
    `examples` are those of the selection that it is on.

    Raises NothingToReadError if an earlier job has not run.
    """
    options, tables = run.options, run.tables
    found = findings(run)
    now = summary_of(found, options.journal)
    before = against[1] if against else _previous(tables, now)
    if options.journal is None and before is not None:
        now = replace(now, journal=before.journal)
    compared = None if before is None else changes(now, before, against[0] if against else "")
    judged = verdict(found, options.targets or Targets())
    content = page(
        *(found, judged, list(parts_of(found)), compared),
        title=options.title,
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
        parked_chart(load),
        waits_chart(found),
        None if is_jobs else survival_chart(found),
        lateness_chart(found),
    )
    return [chart for chart in drawn if chart is not None]


def _previous(tables: Tables, now: RunSummary) -> RunSummary | None:
    path = f"{JOB}/{SUMMARY}"
    return previous_of(tables.folder.read_text(path) if tables.folder.exists(path) else None, now)
