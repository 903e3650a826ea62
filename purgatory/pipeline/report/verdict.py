"""The verdict: what misses its target, and what is wrong with the data, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.pipeline.advise.advice import LATE_JOB_US, LATE_US, LONGER, Targets, is_job
from purgatory.pipeline.console import counted, duration, percent
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.report.tables import shortened
from purgatory.pipeline.schemas import JOB_KIND, STREAM_KIND
from purgatory.pipeline.statistics import bucket_start, wilson_interval

SHOWN_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Harm:
    """How many operations of a kind came to one kind of harm, and how many may."""

    name: str
    """As in Targets: expired, lost, late, failed or drained."""
    kind: str
    count: int
    operations: int
    """That could have; one or more."""
    target: float

    @property
    def share(self) -> float:
        """The share of the operations."""
        return self.count / self.operations

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share."""
        return wilson_interval(self.count, self.operations)

    @property
    def is_missed(self) -> bool:
        """Whether the share is above the target, beyond chance."""
        return self.interval[0] > self.target

    @property
    def is_met(self) -> bool:
        """Whether it is at most the target, beyond chance."""
        return self.interval[1] <= self.target

    def __str__(self) -> str:
        """Return the harm in words, such as "34.2% of watch expired"."""
        return f"{percent(self.share, 1)} of {self.kind} {_PAST[self.name]}"

    @property
    def weight(self) -> float:
        """By which harms are ranked: operations, each by how rare the target says they are."""
        return self.count / self.target


@dataclass(frozen=True, slots=True)
class Change:
    """What to look at or to change first."""

    what: str
    why: str
    setting: str = ""
    """A line to paste; empty if there is no setting for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing what happened with the targets."""

    changes: Sequence[Change]
    """Faults of the data, then missed targets, then capacity; the worst first."""
    harms: Sequence[Harm]
    """All of them; the worst first."""

    @property
    def shown(self) -> Sequence[Change]:
        """The changes that are shown with their reasons."""
        return self.changes[:SHOWN_CHANGES]

    @property
    def left_out(self) -> list[str]:
        """The other changes, and what was lost or failed within its target, in words."""
        few = [
            f"{counted(harm.count, 'operation')} of {harm.kind} {_PAST[harm.name]} "
            f"({percent(harm.share)})"
            for harm in self.harms
            if harm.count and not harm.is_missed and harm.name in ("lost", "failed")
        ]
        return [*(change.what for change in self.changes[SHOWN_CHANGES:]), *few]

    @property
    def missed(self) -> list[Harm]:
        """The harms that miss their targets."""
        return [harm for harm in self.harms if harm.is_missed]

    @property
    def unclear(self) -> list[Harm]:
        """The harms of which there are too few operations to tell."""
        return [harm for harm in self.harms if not harm.is_missed and not harm.is_met]


def verdict(findings: Findings, targets: Targets) -> Verdict:
    """Compare the findings with the targets."""
    found = sorted(harms(findings, targets), key=lambda harm: (-harm.weight, harm.kind, harm.name))
    missed = [_change(harm, findings) for harm in found if harm.is_missed]
    return Verdict([*_data(findings), *missed, *_workers(findings)], found)


def harms(findings: Findings, targets: Targets) -> Iterator[Harm]:
    """Yield what may happen to the operations of each kind, and how often it did.

    A job runs at its deadline, so that it expires is no harm; nothing fires an event stream.
    """
    late = _late(findings)
    failed = {row["kind"]: row["jobs"] for row in findings.failed_jobs}
    for row in findings.by_kind:
        kind, operations = row["kind"], row["operations"] - row["open"]
        counts: dict[str, tuple[int, int]] = {"lost": (row["lost"], operations)}
        if is_job(row):
            counts["failed"] = failed.get(kind, 0), operations
        elif kind != STREAM_KIND:
            counts["expired"] = row["expired"], operations
            counts["drained"] = row["drained"], operations
        if kind in late:
            counts["late"] = late[kind]
        for name, (count, of) in counts.items():
            if of > 0:
                yield Harm(name, kind, count, of, getattr(targets, name))


def _late(findings: Findings) -> dict[str, tuple[int, int]]:
    """Return how many deadlines of each kind were late, and how many there were."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in findings.lateness_counts:
        limit_us = LATE_JOB_US if is_job(row) else LATE_US
        counts = found[row["kind"]]
        counts[0] += row["count"] * (bucket_start(row["bucket"]) > limit_us)
        counts[1] += row["count"]
    return {kind: (late, all_) for kind, (late, all_) in found.items()}


_PAST: Mapping[str, str] = {
    "expired": "expired",
    "lost": "were lost",
    "late": "were late",
    "failed": "failed",
    "drained": "were drained",
}


def _data(findings: Findings) -> Iterator[Change]:
    """Yield the faults of the data, which change all figures."""
    manifest = findings.manifest
    if manifest.future:
        workers = ", ".join(sorted(manifest.future))
        records = sum(of_worker.records for of_worker in manifest.future.values())
        yield Change(
            f"Correct the clock of {workers}",
            f"{counted(records, 'record is', 'records are')} dated in the future and not in these "
            "figures.",
            "timedatectl set-ntp true",
        )
    missing = sum(missing_records(manifest).values())
    if manifest.bad:
        gone = f" {counted(missing, 'record is', 'records are')} missing." if missing else ""
        yield Change(
            f"Repair or replace {counted(len(manifest.bad), 'file')} that cannot be read",
            "All counts are too low, and operations whose ends are in these files count as lost."
            f"{gone}",
        )
    elif missing:
        yield Change(
            "Let the journal keep up",
            f"{counted(missing, 'record is', 'records are')} missing, so all counts are too low.",
            "Journal(ParquetFiles(...), max_buffered=1_000_000)",
        )


def _change(harm: Harm, findings: Findings) -> Change:
    what = str(harm)
    why = f"{harm.count:,} of {harm.operations:,}; the target is {percent(harm.target)}."
    if harm.name == "expired":
        reason, setting = _timeout(harm.kind, findings)
        return Change(what, f"{why}{reason}", setting)
    if harm.name == "failed":
        [error] = [row["error"] for row in findings.failed_jobs if row["kind"] == harm.kind]
        command = f"purgatory jobs list --state failed --handler {harm.kind.partition(':')[2]}"
        return Change(what, f"{why} The latest error: {shortened(error or 'unknown')}", command)
    return Change(what, f"{why} {_reason(harm, findings)}")


def _reason(harm: Harm, findings: Findings) -> str:
    if harm.name == "drained":
        return "Deploys ended them: clients ask again, at once and all together if they may."
    if harm.name == "late" and harm.kind.startswith(JOB_KIND):
        return (
            f"They started more than {duration(LATE_JOB_US)} after they were due: the store is "
            "slow, or more are due than may run (purgatory_jobs_due, max_running)."
        )
    if harm.name == "late":
        return (
            f"They ended more than {duration(LATE_US)} after their deadlines: something blocks the "
            "event loop, such as a synchronous call in an async endpoint, or the process lacks CPU."
        )
    crashed = sum(
        row["count"]
        for row in findings.wait_counts
        if row["kind"] == harm.kind and row["outcome"] == "lost" and row["bucket"] is not None
    )
    if crashed:
        return f"The workers of {crashed:,} of them died: find out why."
    return (
        "Their workers lived on after the deadlines, so their ends were not recorded or not read."
    )


def _timeout(kind: str, findings: Findings) -> tuple[str, str]:
    """Return why operations of a kind expire, after a blank, and a setting with which fewer would.

    Either may be empty.
    """
    advice = next((row for row in findings.advice.get("timeouts", ()) if row["kind"] == kind), None)
    if advice is None:
        return "", ""
    why = f" {advice['reason']}"
    if advice["advised_us"] is None:
        return why, ""
    is_longer = advice["advised_us"] > LONGER * advice["timeout_us"]
    return (why, _timeout_setting(advice)) if is_longer else ("", "")


def _timeout_setting(advice: Mapping[str, Any]) -> str:
    seconds = f"{advice['advised_us'] / 1e6:.3g}"
    if advice["kind"] == "watch":
        return f"WaitSettings(default_wait={seconds})"
    if advice["kind"] == "long-poll":
        return f"Prefer: wait={max(1, round(advice['advised_us'] / 1e6))}"
    return f"timeout={seconds}  # of kind {advice['kind']}"


def _workers(findings: Findings) -> Iterator[Change]:
    advice = findings.advice.get("workers") or {}
    if (advice.get("workers") or 1) > 1:
        yield Change(
            f"Run {advice['workers']:,} workers",
            advice["reason"],
            f"make run WORKERS={advice['workers']} PURGATORY_SIGNALS=redis://localhost:6379",
        )
