"""The verdict: the most important changes, each with the setting to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.pipeline.console import counted, duration, percent
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.report.tables import shortened

SHOWN_CHANGES = 3

_WORTHWHILE = 0.1
# Of all operations, or of all jobs: fewer lost or failed ones are not worth a line at the top.
_LEAST_LOST = 0.001


@dataclass(frozen=True, slots=True)
class Change:
    """One change that the figures ask for."""

    weight: float
    """The share of all operations that it concerns; a change that prevents errors has more."""
    what: str
    why: str
    setting: str
    """A line to paste; empty if there is no setting for it."""


def verdict(findings: Findings) -> list[Change]:
    """Return the most important changes, the first first; [] if nothing should change."""
    found = [*_data(findings), *_workers(findings), *_timeouts(findings), *_wheel(findings)]
    return sorted(found, key=lambda change: -change.weight)[:SHOWN_CHANGES]


def undecided_timeouts(findings: Findings) -> list[str]:
    """Return the kinds whose timeout cannot be advised on, such as for lack of data."""
    timeouts = findings.advice.get("timeouts", ())
    return [advice["kind"] for advice in timeouts if advice["advised_us"] is None]


def left_out(findings: Findings, shown: Sequence[Change]) -> list[str]:
    """Return the faults of the data and of jobs that are not `shown`, the verdict, as sentences.

    They are too few for a change, or others are more important.
    """
    jobs = findings.part(jobs=True)
    found = [change.why.removesuffix(".") for change in _data(findings) if change not in shown]
    if 0 < (lost := findings.sum_of("lost")) <= _LEAST_LOST * findings.operations:
        share = percent(lost / findings.operations)
        found.append(f"{counted(lost, 'operation was', 'operations were')} lost ({share})")
    if 0 < jobs.failed <= _LEAST_LOST * jobs.operations:
        found.append(
            f"{counted(jobs.failed, 'job')} failed ({percent(jobs.failed / jobs.operations)})"
        )
    if skipped := len(findings.manifest.bad):
        found.append(f"{counted(skipped, 'file was', 'files were')} skipped")
    return found


def _data(findings: Findings) -> Iterator[Change]:
    manifest = findings.manifest
    if manifest.future:
        workers = ", ".join(sorted(manifest.future))
        records = sum(of_worker.records for of_worker in manifest.future.values())
        yield Change(
            4.0,
            f"Correct the clock of {workers}",
            f"{counted(records, 'record is', 'records are')} dated in the future and not in these "
            "figures.",
            "timedatectl set-ntp true",
        )
    if missing := missing_records(manifest):
        yield Change(
            3.0,
            "Let the journal keep up",
            f"{counted(sum(missing.values()), 'record is', 'records are')} missing, so all counts "
            "are too low.",
            "Journal(ParquetFiles(...), max_buffered=1_000_000)",
        )
    lost = findings.sum_of("lost")
    if lost > _LEAST_LOST * findings.operations:
        yield Change(
            2.0,
            "Find out why workers die",
            f"{counted(lost, 'operation was', 'operations were')} lost "
            f"({percent(lost / findings.operations)}): their workers were killed.",
            "",
        )
    yield from _failed_jobs(findings)


def _failed_jobs(findings: Findings) -> Iterator[Change]:
    jobs = findings.part(jobs=True)
    if jobs.failed <= _LEAST_LOST * jobs.operations:
        return
    most = jobs.failed_jobs[0]
    yield Change(
        1.8,
        "Find out why jobs fail",
        f"{counted(jobs.failed, 'job')} of {jobs.operations:,} failed, most of them of "
        f"{most['kind']}: {shortened(most['error'] or 'unknown')}",
        "purgatory jobs list --state failed",
    )


def _workers(findings: Findings) -> Iterator[Change]:
    advice = findings.advice.get("workers") or {}
    if (advice.get("workers") or 1) > 1:
        yield Change(
            1.5,
            f"Run {advice['workers']:,} workers",
            advice["reason"],
            f"make run WORKERS={advice['workers']} PURGATORY_SIGNALS=redis://localhost:6379",
        )


def _timeouts(findings: Findings) -> Iterator[Change]:
    for advice in findings.advice.get("timeouts", ()):
        advised, present = advice["advised_us"], advice["timeout_us"]
        if advised is None or abs(advised - present) <= _WORTHWHILE * present:
            continue
        yield Change(
            advice["operations"] / max(1, findings.operations),
            f"A timeout of {duration(advised)} for {advice['kind']}, not {duration(present)}",
            advice["reason"],
            _timeout_setting(advice),
        )


def _timeout_setting(advice: Mapping[str, Any]) -> str:
    seconds = f"{advice['advised_us'] / 1e6:.3g}"
    if advice["kind"] == "watch":
        return f"WaitSettings(default_wait={seconds})"
    if advice["kind"] == "long-poll":
        return f"Prefer: wait={max(1, round(advice['advised_us'] / 1e6))}"
    return f"timeout={seconds}  # of kind {advice['kind']}"


def _wheel(findings: Findings) -> Iterator[Change]:
    advice = findings.advice.get("geometry") or {}
    advised, default = advice.get("advised"), advice.get("default")
    if advised and advised != default:
        yield Change(
            0.0,
            f"A wheel of {advised['wheel_size']:,} buckets of {advised['tick_ms']} ms",
            f"{advice['reason']} The service has no setting for it.",
            f"Purgatory(tick_ms={advised['tick_ms']}, wheel_size={advised['wheel_size']})",
        )
