"""What changed since the previous run, and what of it is notable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from purgatory.pipeline.console.formatting import counted, duration, percent
from purgatory.pipeline.report.previous_run import KindSummary, RunSummary
from purgatory.pipeline.statistics.binomial import wilson_interval

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
    """What changed since the previous run."""

    as_of: str
    """Of the previous run."""
    operations: int
    """That are new."""
    sentences: tuple[str, ...]
    """What is notable, the most important first."""
    kinds: tuple[KindChange, ...]
    """Those with completed operations since; the most first."""


def changes(now: RunSummary, before: RunSummary) -> Changes:
    """Return what changed since the run `before`."""
    nothing = KindSummary(outcomes={}, waits={})
    found = [
        KindChange(kind, known, summary.since(known))
        for kind, summary in now.kinds.items()
        for known in [before.kinds.get(kind, nothing)]
    ]
    kinds = sorted(
        (change for change in found if change.since.ended), key=lambda change: -change.since.ended
    )
    notable = [sentence for change in kinds for sentence in _of_kind(change)]
    notable.sort(key=lambda weighed: -weighed[0])
    sentences = [
        *_of_faults(now.faults, before.faults),
        *(sentence for _, sentence in notable),
        *_of_settings(now.settings, before.settings),
    ]
    return Changes(
        as_of=before.as_of,
        operations=max(0, now.operations - before.operations),
        sentences=tuple(sentences[:_SHOWN_SENTENCES]),
        kinds=tuple(kinds),
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
