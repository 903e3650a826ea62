"""The page: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from purgatory.pipeline.console.formatting import counted, duration, figure, percent
from purgatory.pipeline.report.drawing import Chart
from purgatory.pipeline.report.findings import Findings, Rows

_CSS = Path(__file__).with_name("page.css")
_SHOWN_FILES = 50
_SHOWN_PREFIXES = 30

# The browser blocks all requests of the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(findings: Findings, charts: Sequence[Chart], title: str) -> str:
    """Return the report as HTML."""
    sections = [
        _head(findings, title),
        _notices(findings),
        '<nav aria-label="Sections"><a href="#advice">Advice</a><a href="#charts">Charts</a>'
        '<a href="#tables">Tables</a><a href="#files">Files</a></nav>',
        "<main>",
        '<h2 id="advice">Advice</h2>',
        _timeouts(findings.advice["timeouts"]),
        _workers(findings.advice["workers"]),
        _geometry(findings.advice["geometry"]),
        '<h2 id="charts">Charts</h2>',
        *map(_figure, charts),
        '<h2 id="tables">Tables</h2>',
        _waits_table(findings.by_kind, "kind", "By kind"),
        _waits_table(findings.by_key_prefix[:_SHOWN_PREFIXES], "key_prefix", "By key prefix"),
        '<h2 id="files">Files</h2>',
        _files(findings),
        "</main>",
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_CSS.read_text(encoding='utf-8')}</style></head>",
            "<body>",
            *sections,
            "</body></html>",
            "",
        ]
    )


def _head(findings: Findings, title: str) -> str:
    hours = sorted(findings.manifest.hours)
    first, last = (hour.replace("T", " ") for hour in (hours[0], hours[-1]))
    figures = [
        ("operations", f"{findings.operations:,}"),
        ("kinds", f"{len(findings.by_kind):,}"),
        *(
            (name, escape(percent(findings.sum_of(name) / max(1, findings.operations), 1)))
            for name in ("fired", "expired", "cancelled", "drained")
        ),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)
    return (
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="faint">Operations that began to wait in the hours from {first}:00 '
        f"to {last}:59 UTC.</p>"
        f"<dl>{cells}</dl></header>"
    )


def _notices(findings: Findings) -> str:
    found = []
    if findings.manifest.bad:
        found.append(
            f'Files that could not be read: {len(findings.manifest.bad):,}. They <a href="#files">'
            "are skipped</a>, so counts are too low."
        )
    if lost := findings.sum_of("lost"):
        found.append(
            f"{counted(lost, 'operation was', 'operations were')} lost: past the deadline without "
            "a record of the end. A worker was killed, or its journal dropped records."
        )
    if contested := findings.sum_of("contested"):
        having = counted(contested, "operation has", "operations have")
        found.append(f"{having} two different ends; the earlier one counts.")
    if waiting := findings.sum_of("open"):
        found.append(f"{counted(waiting, 'operation')} may still be waiting.")
    return "".join(f'<p class="notice" role="note">{text}</p>' for text in found)


def _timeouts(timeouts: Sequence[dict[str, Any]]) -> str:
    if not timeouts:
        return "<p>No kind has a timeout.</p>"
    rows = []
    for advice in timeouts:
        high = _time(advice["high_us"], "beyond the observed waits")
        between = f"{_time(advice['low_us'], '?')} to {high}"
        rows.append(
            [
                _name(advice["kind"]),
                f"<td>{duration(advice['timeout_us'])}</td>",
                f"<td>{_percent(advice['expired_share'])}<br><span class='faint'>"
                f"{_percent(advice['expired_share_low'])} to "
                f"{_percent(advice['expired_share_high'])}</span></td>",
                "<td>none</td>"
                if advice["advised_us"] is None
                else f"<td><strong>{duration(advice['advised_us'])}</strong><br>"
                f"<span class='faint'>{between}</span></td>",
                f'<td class="text">{_reason(advice)}</td>',
            ]
        )
    share = percent(timeouts[0]["chosen_share"])
    return _table(
        ("kind", "median timeout", "expired (95 %)", f"timeout for {share} (95 %)", "why"),
        rows,
        "A timeout for each kind",
    )


def _workers(advice: dict[str, Any]) -> str:
    text = f"<h3>Workers</h3><p>{_reason(advice)}</p>"
    if advice["workers"] is None:
        return text
    rows = [
        _cells(label, _estimate(advice[name], unit))
        for label, name, unit in (
            ("arrivals, a second", "arrivals_per_s", ""),
            ("wait, mean", "wait_s", " s"),
            ("parked, by Little's law", "parked", ""),
        )
    ]
    rows.append(_cells("parked, counted", figure(advice["parked_counted"], 4)))
    rows.append(_cells("workers", f"<strong>{advice['workers']:,}</strong>"))
    return text + _table(("", "in the busiest hour (95 %)"), rows, "The load of the workers")


def _geometry(advice: dict[str, Any]) -> str:
    text = f"<h3>Timing wheel</h3><p>{_reason(advice)}</p>"
    if advice["advised"] is None:
        return text
    rows = []
    for wheel in advice["candidates"]:
        mark = " (advised)" if wheel == advice["advised"] else ""
        mark += " (default)" if wheel == advice["default"] else ""
        rows.append(
            _cells(
                f"{wheel['tick_ms']} ms x {wheel['wheel_size']}{mark}",
                f"{wheel['levels']}",
                f"{wheel['cascades']:.2f}<br><span class='faint'>{wheel['cascades_low']:.2f} to "
                f"{wheel['cascades_high']:.2f}</span>",
                f"{wheel['bytes'] / 1024:,.0f} KiB",
            )
        )
    table = _table(
        ("tick x buckets", "levels", "moves of a timer (95 %)", "memory at the peak"),
        rows,
        f"Computed from {counted(advice['timers'], 'timer')}, at most "
        f"{advice['peak_parked']:,} pending",
    )
    return f"{text}<details><summary>All candidates</summary>{table}</details>"


def _figure(chart: Chart) -> str:
    rows = [_cells(escape(row[0]), *map(escape, row[1:])) for row in chart.rows]
    table = _table(chart.header, rows, chart.title)
    return (
        f'<figure id="{chart.name}-figure"><h3>{escape(chart.title)}</h3>{chart.page_svg()}'
        f'<figcaption class="faint">{escape(chart.summary)}</figcaption></figure>'
        f"<details><summary>The figures</summary>{table}</details>"
    )


def _waits_table(rows: Rows, name: str, title: str) -> str:
    body = [
        [
            _name(row[name]),
            f"<td>{row['operations']:,}</td>",
            *(f"<td>{_percent(row[f'share_{outcome}'])}</td>" for outcome in ("fired", "expired")),
            *(
                f"<td>{_time(row[f'wait_us_{column}'], '')}</td>"
                for column in ("p50", "p90", "p99", "max")
            ),
            f"<td>{_time(row['lateness_us_p99'], '')}</td>",
        ]
        for row in rows
    ]
    columns = ("fired", "expired", "wait: p50", "p90", "p99", "maximum", "lateness: p99")
    return _table((name.replace("_", " "), "operations", *columns), body, title)


def _files(findings: Findings) -> str:
    manifest = findings.manifest
    files, rows = manifest.read_files, manifest.rows
    text = f"<p>{counted(files, 'file')} of the journal with {counted(rows, 'record')}.</p>"
    if not manifest.bad:
        return text + "<p>None was skipped.</p>"
    bad = sorted(manifest.bad.items())
    body = [[_name(path), f'<td class="text">{escape(reason)}</td>'] for path, reason in bad]
    rest = f"<p>And {len(bad) - _SHOWN_FILES:,} more.</p>" if len(bad) > _SHOWN_FILES else ""
    return text + _table(("file", "why"), body[:_SHOWN_FILES], "Skipped") + rest


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    head = "".join(
        f'<th scope="col"{" class=text" if name == "why" else ""}>{escape(name)}</th>'
        for name in header
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table>'
        f"<caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(name: str, *values: str) -> list[str]:
    return [f'<th scope="row">{name}</th>', *(f"<td>{value}</td>" for value in values)]


def _name(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _reason(advice: dict[str, Any]) -> str:
    text = escape(advice["reason"])
    if not advice["is_thin"]:
        return text
    # "Too little data: ..."
    warning, colon, rest = text.partition(":")
    return f'<strong class="thin">{warning}{colon}</strong>{rest}'


def _estimate(estimate: dict[str, float], unit: str) -> str:
    value, low, high = (f"{figure(estimate[name], 4)}{unit}" for name in ("value", "low", "high"))
    return f"{value}<br><span class='faint'>{low} to {high}</span>"


def _time(micros: float | None, otherwise: str) -> str:
    return otherwise if micros is None else duration(micros)


def _percent(share: float) -> str:
    return escape(percent(share))
