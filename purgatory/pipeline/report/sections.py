"""The sections of the page, as HTML: the verdict, what changed, advice, and what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from purgatory.pipeline.console import counted, duration, figure, percent
from purgatory.pipeline.outcomes.manifest import Manifest, missing_records
from purgatory.pipeline.report.changes import Changes, KindChange
from purgatory.pipeline.report.findings import LISTED_KINDS, Findings
from purgatory.pipeline.report.tables import (
    cells,
    folded,
    name_cell,
    table,
    time_or,
    with_interval,
)
from purgatory.pipeline.report.verdict import Harm, Verdict
from purgatory.pipeline.sql.selection import Examples


def advice_section(advice: Mapping[str, Any]) -> str:
    """Return the whole advice."""
    parts = _timeouts(advice["timeouts"]), _workers(advice["workers"])
    return "".join(f'<div class="card">{part}</div>' for part in parts)


def _timeouts(timeouts: Sequence[Mapping[str, Any]]) -> str:
    if not timeouts:
        return "<h3>Timeouts</h3><p>No kind has a timeout.</p>"
    share = percent(timeouts[0]["chosen_share"])
    header = ("kind", "median timeout", "expired (95 %)", f"timeout for {share} (95 %)", "why")
    rows = map(_timeout_row, timeouts[:LISTED_KINDS])
    more = len(timeouts) - LISTED_KINDS
    rest = f"<p>And {counted(more, 'kind')} more, in advice.json.</p>" if more > 0 else ""
    return f"<h3>Timeouts</h3>{table(header, rows, 'A timeout for each kind')}{rest}"


def _timeout_row(advice: Mapping[str, Any]) -> list[str]:
    high = time_or(advice["high_us"], "beyond the observed waits")
    between = f"{time_or(advice['low_us'], '?')} to {high}"
    shares = (percent(advice[f"expired_share_{name}"]) for name in ("low", "high"))
    return [
        name_cell(advice["kind"]),
        f"<td>{duration(advice['timeout_us'])}</td>",
        with_interval(percent(advice["expired_share"]), " to ".join(shares)),
        "<td>none</td>"
        if advice["advised_us"] is None
        else with_interval(duration(advice["advised_us"]), between),
        f'<td class="text">{_reason(advice)}</td>',
    ]


def _workers(advice: Mapping[str, Any]) -> str:
    text = f"<h3>Workers</h3><p>{_reason(advice)}</p>"
    if advice["workers"] is None:
        return text
    header = ("", "p99.9 of the minutes of the busiest day (95 %)", "highest", "at (UTC)")
    found = table(header, _peaks(advice), "The load at the peaks")
    return f"{text}{found}<p><strong>{counted(advice['workers'], 'worker')}</strong></p>"


def _peaks(advice: Mapping[str, Any]) -> Iterator[list[str]]:
    for label, name in (("arrivals, in a second", "arrivals_per_s"), ("parked", "parked")):
        peak = advice[name]
        value, low, high = (figure(peak[part], 4) for part in ("value", "low", "high"))
        at = datetime.fromtimestamp(peak["highest_start_s"], UTC)
        yield [
            name_cell(label),
            with_interval(value, f"{low} to {high}"),
            f"<td>{figure(peak['highest'], 4)}</td>",
            f"<td>{at:%Y-%m-%d %H:%M}</td>",
        ]


def _reason(advice: Mapping[str, Any]) -> str:
    text = escape(advice["reason"])
    if not advice["is_thin"]:
        return text
    # "Too little data: ..."
    warning, colon, rest = text.partition(":")
    return f'<strong class="thin">{warning}{colon}</strong>{rest}'


_SHOWN_FILES = 50
_SHOWN_NAMES = 10


def read_section(findings: Findings, journal: str | None) -> str:
    """Return the facts on what was read, and the files that were skipped."""
    facts = "".join(
        f"<div{' class=attention' if is_fault else ''}><dt>{name}</dt><dd>{text}</dd></div>"
        for name, text, is_fault in _facts(findings, journal)
    )
    return f'<dl class="facts">{facts}</dl>{_skipped(findings)}'


def _facts(findings: Findings, journal: str | None) -> Iterator[tuple[str, str, bool]]:
    """Return name, text as HTML, and whether it asks for attention."""
    manifest = findings.manifest
    read = f"{counted(manifest.read_files, 'file')} with {counted(manifest.rows, 'record')}"
    where = f"<code>{escape(journal)}</code>: " if journal else ""
    yield "Journal", f"{where}{read}", False
    yield "As of", f"{minute_of(manifest.as_of)} UTC, the latest event", False
    lost = findings.sum_of("lost")
    grace = f"{duration(manifest.grace_s * 1e6)} after the deadline"
    lost_text = (
        f"{counted(lost, 'operation')} without an end {grace}, of killed workers or of dropped "
        "records"
    )
    yield "Lost", lost_text if lost else f"no operation is without an end {grace}", bool(lost)
    waiting = findings.sum_of("open")
    waiting_text = f"{counted(waiting, 'operation')} at the latest event" if waiting else "none"
    yield "Still waiting", waiting_text, False
    yield "Sampling", _sampling(manifest.sampling), bool(manifest.sampling)
    missing = missing_records(manifest)
    yield "Gaps", _gaps(missing), bool(missing)
    yield "Clock skew", _skew(findings), bool(manifest.future)
    skipped = list(_skipped_counts(manifest))
    yield "Skipped", "; ".join(skipped) or "no file, and no record", bool(skipped)
    contested = findings.sum_of("contested")
    ends = f"{counted(contested, 'operation')} with two ends; the earlier one counts"
    yield "Contested", ends if contested else "no operation has two ends", bool(contested)


def _skipped_counts(manifest: Manifest) -> Iterator[str]:
    if bad := len(manifest.bad):
        yield f"{counted(bad, 'file')} could not be read, so counts are too low"
    if unknown := manifest.unknown_rows:
        yield f"{counted(unknown, 'record')} unknown, incomplete, or of an impossible time"


def minute_of(time: str | None) -> str:
    """Return a time of ISO format to the second, for people."""
    return escape((time or "unknown")[:19].replace("T", " "))


def _sampling(sampling: Mapping[str, float]) -> str:
    if not sampling:
        return "every operation was recorded"
    kinds = _listed(
        [f"{escape(kind)} {escape(percent(sampling[kind]))}" for kind in sorted(sampling)]
    )
    return f"{kinds}. The advice on workers is scaled to all operations; counts are the sample's"


def _gaps(missing: Mapping[str, int]) -> str:
    if not missing:
        return "no record is missing"
    most = sorted(missing.items(), key=lambda item: (-item[1], item[0]))
    workers = _listed([f"{escape(worker)} ({count:,})" for worker, count in most])
    return (
        f"{counted(sum(missing.values()), 'record is', 'records are')} missing, by gaps in their "
        f"numbers: {workers}. A journal dropped them, or a file is not here"
    )


def _skew(findings: Findings) -> str:
    future = findings.manifest.future
    if not future:
        return "no record is dated in the future"
    records = sum(of_worker.records for of_worker in future.values())
    workers = _listed(
        [
            f"{escape(worker)} ({of_worker.records:,}, up to {minute_of(of_worker.last)})"
            for worker, of_worker in sorted(future.items())
        ]
    )
    return (
        f"{counted(records, 'record is', 'records are')} dated in the future, and set aside until "
        f"then. The clock of a worker is wrong: {workers}"
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _skipped(findings: Findings) -> str:
    if not findings.manifest.bad:
        return ""
    bad = sorted(findings.manifest.bad.items())
    rows = [[name_cell(path), f'<td class="text">{escape(reason)}</td>'] for path, reason in bad]
    rest = f"<p>And {len(bad) - _SHOWN_FILES:,} more.</p>" if len(bad) > _SHOWN_FILES else ""
    found = table(("file", "why"), rows[:_SHOWN_FILES], "Skipped files")
    return f'<div id="skipped">{folded("Skipped files", f"{found}{rest}")}</div>'


_SHOWN_KINDS = 12
# A smaller difference is not marked.
_MARKED = 0.05


def changes_section(found: Changes | None) -> str:
    """Return what changed since the previous run, or differs from what is compared with."""
    against = found.against if found else ""
    heading = f"Compared with {escape(against)}" if against else "Since the previous run"
    title = f'<section id="changes" class="card"><h2>{heading}</h2>'
    if found is None:
        return (
            f"{title}<p>This is the first report in its folder: the next one says here what has "
            "changed.</p></section>"
        )
    new = f"{counted(found.operations, 'new operation')} since {minute_of(found.as_of)} UTC."
    new = f'<p class="faint">{new}</p>'
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.sentences)
    notable = f"<ul>{items}</ul>" if items else "<p>Nothing notable has changed.</p>"
    rows = map(_row, found.kinds[:_SHOWN_KINDS])
    header = ("kind", "ended" if against else "ended since", "expired", "wait: p50", "p99")
    caption = f"This part, and {against}" if against else "Before the previous run, and since"
    compared = table(header, rows, caption) if found.kinds else ""
    return f"{title}{'' if against else new}{notable}{compared}</section>"


def examples_section(found: Examples) -> str:
    """Return the slowest requests of a selection, and the fires that ended the slowest 1 %."""
    late = (
        [
            name_cell(row["key"] or "(no key)"),
            f"<td>{row['at_time']:%Y-%m-%d %H:%M:%S}</td>",
            f"<td>{row['operations']:,}</td>",
            f"<td>{duration(row['wait_us'])}</td>",
        ]
        for row in found.late_fires
    )
    slow = (
        [
            name_cell(row["kind"]),
            f"<td>{duration(row['wait_us'])}</td>",
            f"<td>{row['completed_at']:%Y-%m-%d %H:%M:%S}</td>",
            f'<td class="text">{escape(row["completed_by"] or ", ".join(row["keys"]))}</td>',
            f'<td class="text">{escape(_labels(row["labels"]))}</td>',
        ]
        for row in found.slowest
    )
    if not found.slowest:
        return '<div class="card"><p>No request of the selection was fired.</p></div>'
    of_fires = ("key", "fired at (UTC)", "waits ended", "longest")
    fires = table(of_fires, late, "Fires that ended most of the slowest 1 % of each kind")
    of_waits = ("kind", "wait", "fired at (UTC)", "key fired", "labels")
    return f'<div class="card">{fires}{table(of_waits, slow, "The slowest waits")}</div>'


def _labels(labels: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (labels or {}).items())


def _row(change: KindChange) -> list[str]:
    before, since = change.before, change.since
    shares = (before.expired_share if before.ended else None, since.expired_share)
    texts = tuple("" if share is None else percent(share) for share in shares)
    return [
        name_cell(change.kind),
        f"<td>{since.ended:,}</td>",
        # As in the sentences above: what may be chance is not marked.
        _compared(shares, texts, is_marked=change.has_other_share),
        *(_waits(change, percents) for percents in (50.0, 99.0)),
    ]


def _waits(change: KindChange, percents: float) -> str:
    old, new = (part.percentile_us(percents) for part in (change.before, change.since))
    texts = ("" if old is None else duration(old), "too few" if new is None else duration(new))
    return _compared((old, new), texts)


def _compared(
    values: tuple[float | None, float | None], texts: tuple[str, ...], *, is_marked: bool = True
) -> str:
    """Return a cell with an earlier value and the present one; longer and more is worse."""
    (old, new), (before, since) = values, texts
    if old is None or new is None or not before:
        return f"<td>{escape(since)}</td>"
    # A share of nothing has no ratio.
    ratio = (new + 1e-9) / (old + 1e-9) if is_marked else 1.0
    mark = "worse" if ratio > 1 + _MARKED else "better" if ratio < 1 - _MARKED else "same"
    arrow, word = {"worse": ("&#9650;", "up"), "better": ("&#9660;", "down")}.get(mark, ("", ""))
    sign = f'<i aria-hidden="true">{arrow}</i><span class="hidden">{word}</span>' if word else ""
    return f'<td class="{mark}">{sign}{escape(since)}<small>was {escape(before)}</small></td>'


_SHOWN_HARMS = 50


def verdict_section(found: Verdict) -> str:
    """Return what misses a target, what to do first, and how far all targets are met."""
    few = (
        f'<p class="faint">Also found: {escape("; ".join(found.left_out))}. '
        '<a href="#read">What was read</a> says more of the data.</p>'
        if found.left_out
        else ""
    )
    targets = folded("All targets", _targets(found.harms)) if found.harms else ""
    items = "".join(
        f"<li><strong>{escape(change.what)}</strong><p>{escape(change.why)}</p>"
        + (f"<pre tabindex=0><code>{escape(change.setting)}</code></pre>" if change.setting else "")
        + "</li>"
        for change in found.shown
    )
    content, kind = "", ""
    if items:
        title, content = "What to change first", f'<ol class="verdict">{items}</ol>'
    elif found.unclear:
        kinds = ", ".join(dict.fromkeys(harm.kind for harm in found.unclear))
        title = "No target is known to be missed"
        content = f"<p>There are too few operations to tell for all targets of {escape(kinds)}.</p>"
    else:
        title, kind = "Every target is met", " good"
    head = f'<section id="verdict" class="card{kind}"><h2>{title}</h2>'
    return f"{head}{content}{few}{targets}</section>"


def _targets(harms: Sequence[Harm]) -> str:
    rows = []
    for harm in harms[:_SHOWN_HARMS]:
        low, high = map(percent, harm.interval)
        mark, word = ("worse", "missed") if harm.is_missed else ("better", "met")
        if not harm.is_missed and not harm.is_met:
            mark, word = "same", "too few to tell"
        rows.append(
            [
                *cells(harm.kind, harm.name),
                with_interval(percent(harm.share), f"{low} to {high}"),
                f"<td>{escape(percent(harm.target))}</td>",
                f'<td class="{mark}">{word}</td>',
            ]
        )
    more = len(harms) - _SHOWN_HARMS
    rest = f"<p>And {counted(more, 'target')} more.</p>" if more > 0 else ""
    return table(("kind", "harm", "share (95 %)", "target", "result"), rows, "Targets") + rest
