"""What changed since the previous run, from the summary that each report leaves for the next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from purgatory.pipeline.console import counted, duration, percent
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.schemas import COMPLETIONS
from purgatory.pipeline.statistics import middle_at, wilson_interval

VERSION = 1
KINDS = 50
"""The kinds with most operations; the summary has no others."""

# 32 buckets for each doubling: a percentile is within 1.6 %.
_BUCKETS = 4
# So many waits beyond a percentile make it more than chance.
_LEAST_BEYOND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSummary:
    """The completed operations of a kind: counts by outcome, and a histogram of their waits."""

    outcomes: Mapping[str, int]
    waits: Mapping[str, int]
    """By the first of `_BUCKETS` buckets, as text: the keys of a JSON object."""

    @property
    def ended(self) -> int:
        """The number of completed operations."""
        return sum(self.outcomes.values())

    @property
    def expired_share(self) -> float:
        """The share of the completed operations that expired."""
        return self.outcomes.get("expired", 0) / max(1, self.ended)

    def since(self, before: KindSummary) -> KindSummary:
        """Return what was added to `before`; what was corrected downwards counts as nothing."""
        return KindSummary(
            outcomes=dict(Counter(self.outcomes) - Counter(before.outcomes)),
            waits=dict(Counter(self.waits) - Counter(before.waits)),
        )

    def percentile_us(self, percent: float) -> float | None:
        """Return a percentile of the waits, within 1.6 %; None if it would be chance."""
        total = sum(self.waits.values())
        if total * (100 - percent) / 100 < _LEAST_BEYOND:
            return None
        waits = {int(first): count for first, count in self.waits.items()}
        return middle_at(waits, percent, _BUCKETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A report as the next one needs it."""

    as_of: str
    records: int
    operations: int
    journal: str | None
    faults: Mapping[str, int]
    """Numbers of lost operations, missing records, failed jobs and so on, by name."""
    settings: Mapping[str, str]
    """The advice, by what it is on."""
    kinds: Mapping[str, KindSummary] = field(default_factory=dict)

    def is_same(self, other: RunSummary) -> bool:
        """Return whether both read the same records."""
        return (self.as_of, self.records) == (other.as_of, other.records)


def summary_of(findings: Findings, journal: str | None) -> RunSummary:
    """Return the summary of this run."""
    manifest = findings.manifest
    return RunSummary(
        as_of=manifest.as_of or "",
        records=manifest.rows,
        operations=findings.operations,
        journal=journal,
        faults={
            "operations lost": findings.sum_of("lost"),
            "records missing": sum(missing_records(manifest).values()),
            "records dated in the future": sum(
                of_worker.records for of_worker in manifest.future.values()
            ),
            "files skipped": len(manifest.bad),
            "jobs failed": findings.failed,
        },
        settings=dict(_settings(findings.advice)),
        kinds=_kinds(findings),
    )


def as_json(now: RunSummary, before: RunSummary | None) -> str:
    """Return the summary, with the one that it was compared with, for the next run."""
    content = {
        "version": VERSION,
        "run": asdict(now),
        "previous": None if before is None else asdict(before),
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def previous_of(text: str | None, now: RunSummary) -> RunSummary | None:
    """Return the previous run from the content of the summary that it left; None if unknown.

    A report that is written again on the same records has the same previous run as before.
    """
    try:
        content = json.loads(text or "null")
        if content is None or content["version"] != VERSION:
            return None
        last = _read(content["run"])
        if not last.is_same(now):
            return last
        return None if content["previous"] is None else _read(content["previous"])
    except (ValueError, TypeError, KeyError, AttributeError):
        # A report is worth more than a comparison with a file that somebody has damaged.
        return None


def _read(content: Mapping[str, Any]) -> RunSummary:
    kinds = {kind: KindSummary(**summary) for kind, summary in content["kinds"].items()}
    return RunSummary(**{**content, "kinds": kinds})


def _kinds(findings: Findings) -> dict[str, KindSummary]:
    names = [row["kind"] for row in findings.by_kind[:KINDS]]
    waits: dict[str, Counter[str]] = {name: Counter() for name in names}
    for row in findings.wait_counts:
        is_ended = row["outcome"] in COMPLETIONS and row["bucket"] is not None
        if is_ended and row["kind"] in waits:
            waits[row["kind"]][str(row["bucket"] // _BUCKETS * _BUCKETS)] += row["count"]
    outcomes = {
        row["kind"]: {name: row[name] for name in COMPLETIONS} for row in findings.by_kind[:KINDS]
    }
    return {name: KindSummary(outcomes=outcomes[name], waits=dict(waits[name])) for name in names}


def _settings(advice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    workers = (advice.get("workers") or {}).get("workers")
    if workers is not None:
        yield "the number of workers", f"{workers:,}"
    for timeout in advice.get("timeouts", ())[:KINDS]:
        if timeout["advised_us"] is not None:
            yield f"the timeout of {timeout['kind']}", duration(timeout["advised_us"])


_NOTABLE_RATIO = 1.2
_NOTABLE_SHARE = 0.005
_SHOWN_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class KindChange:
    """A kind of operations before the previous run, and since."""

    kind: str
    before: KindSummary
    since: KindSummary

    @property
    def has_other_share(self) -> bool:
        """Whether the 95 % intervals of the expired shares are apart; False for a new kind."""
        return bool(self.before.ended and self.since.ended) and _differ(self.before, self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed since the previous run, or differs from another part of the data."""

    as_of: str
    """Of the previous run."""
    operations: int
    """That are new."""
    sentences: tuple[str, ...]
    """What is notable, the most important first."""
    kinds: tuple[KindChange, ...]
    """Those with completed operations since; the most first."""
    against: str = ""
    """What is compared with; the previous run, if it is empty."""


def changes(now: RunSummary, before: RunSummary, against: str = "") -> Changes:
    """Return what changed since the run `before`, which is of other data if `against` names it."""
    nothing = KindSummary(outcomes={}, waits={})
    found = [
        KindChange(kind, known, summary if against else summary.since(known))
        for kind, summary in now.kinds.items()
        for known in [before.kinds.get(kind, nothing)]
    ]
    kinds = sorted(
        (change for change in found if change.since.ended), key=lambda change: -change.since.ended
    )
    notable = [sentence for change in kinds for sentence in _of_kind(change)]
    notable.sort(key=lambda weighed: -weighed[0])
    sentences = [
        *(() if against else _of_faults(now.faults, before.faults)),
        *(sentence for _, sentence in notable),
        *_of_settings(now.settings, before.settings),
    ]
    return Changes(
        as_of=before.as_of,
        operations=max(0, now.operations - before.operations),
        sentences=tuple(sentences[:_SHOWN_SENTENCES]),
        kinds=tuple(kinds),
        against=against,
    )


def _of_faults(now: Mapping[str, int], before: Mapping[str, int]) -> Iterator[str]:
    for name, count in now.items():
        # A report of an earlier version has not counted all of them.
        if (more := count - before.get(name, count)) > 0:
            yield f"{more:,} more {name}, {count:,} in all."


def _of_kind(change: KindChange) -> Iterator[tuple[float, str]]:
    """Return the notable changes of a kind, each with its weight."""
    before, since = change.before, change.since
    if not before.ended:
        yield 10.0, f"{change.kind} is new: {counted(since.ended, 'operation')} ended."
        return
    for percents in (99.0, 50.0):
        old, new = before.percentile_us(percents), since.percentile_us(percents)
        if old and new and not 1 / _NOTABLE_RATIO < new / old < _NOTABLE_RATIO:
            word = "rose" if new > old else "fell"
            yield (
                max(new / old, old / new) * (2 if new > old else 1),
                f"The p{percents:g} of the waits of {change.kind} {word} from {duration(old)} to "
                f"{duration(new)} ({new / old - 1:+.0%}).",
            )
    old, new = before.expired_share, since.expired_share
    if abs(new - old) >= _NOTABLE_SHARE and change.has_other_share:
        word = "rose" if new > old else "fell"
        yield (
            1 + abs(new - old) * (20 if new > old else 10),
            f"The share of {change.kind} that expired {word} from {percent(old)} to "
            f"{percent(new)}.",
        )


def _differ(one: KindSummary, other: KindSummary) -> bool:
    """Return whether the 95 % intervals of the expired shares do not overlap."""
    spans = [
        wilson_interval(summary.outcomes.get("expired", 0), summary.ended)
        for summary in (one, other)
    ]
    return max(low for low, _ in spans) > min(high for _, high in spans)


def _of_settings(now: Mapping[str, str], before: Mapping[str, str]) -> Iterable[str]:
    return [
        f"The advice on {name} was {before[name]} and is {value}."
        for name, value in now.items()
        if before.get(name, value) != value
    ]
