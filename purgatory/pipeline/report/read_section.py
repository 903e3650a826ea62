"""What was read: the journal, its faults, and how they were handled; as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from purgatory.pipeline.console.formatting import counted, duration, percent
from purgatory.pipeline.outcomes.manifest import Manifest, missing_records
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.report.html_table import folded, name_cell, table

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
        yield f"{counted(unknown, 'record')} of unknown events, or without identifier or time"


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
