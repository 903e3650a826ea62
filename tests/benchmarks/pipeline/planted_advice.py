"""What the advice on a made-up journal has to be: planted by how the journal is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.pipeline.advise.advice import Advice, Targets, TimeoutAdvice
from purgatory.pipeline.advise.workers import Capacity, PeakLoad
from purgatory.pipeline.schemas import JOB_KIND
from tests.synthetic_journal import Kind, Truth

TARGETS = Targets()
CAPACITY = Capacity(parked=1_000)
"""Few parked operations in a worker, so that the peak decides on the number of workers."""

# Chance exceeds it once in a billion times.
_SIGMAS = 6
# An advised timeout is the end of a bucket, an eighth of a doubling.
_BUCKET = 2**0.125
# Operations that a restart ends are few beside all of an hour.
_RESTARTS = 0.01

Comparison = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class PlantedAdvice:
    """The load at the peak and the waits of each kind, as the journal was drawn."""

    arrivals_per_s: float
    parked: float
    steady_parked: float
    """Of these, those beside the burst, whose number varies."""
    timeouts_us: dict[str, float | None]
    """With which TARGETS.expired would expire; None is beyond the longest observed wait."""
    expired_shares: dict[str, float]
    """Of the kinds that nobody cancels."""

    @classmethod
    def of(
        cls, truth: Truth, kinds: Sequence[Kind], hours: float, burst: Kind, burst_s: float
    ) -> PlantedAdvice:
        """Return that of `kinds` over some hours, and of a burst that arrives within `burst_s`.

        Nothing of the burst ends while it arrives.
        """
        steady = [truth.kinds[kind.name] for kind in kinds if not kind.name.startswith(JOB_KIND)]
        at_once = truth.kinds[burst.name].operations
        seconds = hours * 3600
        # Little's law.
        waited_s = sum(int(part.sum()) for kind in steady for part in kind.waits_us) / 1e6
        parked_kinds = [kind for kind in (*kinds, burst) if not kind.name.startswith(JOB_KIND)]
        return cls(
            arrivals_per_s=sum(kind.operations for kind in steady) / seconds + at_once / burst_s,
            parked=at_once + waited_s / seconds,
            steady_parked=waited_s / seconds,
            timeouts_us={kind.name: _timeout_us(kind) for kind in parked_kinds},
            expired_shares={
                kind.name: kind.survival(kind.timeout)
                for kind in parked_kinds
                if kind.cancelled_after is None
            },
        )

    def compared(self, advice: Advice) -> Iterator[Comparison]:
        """Yield what was advised beside what is true; both are equal if the advice is right."""
        workers = advice.workers
        assert workers.arrivals_per_s is not None and workers.parked is not None
        # The most of the seconds of a minute, which is more than their mean.
        noise = _SIGMAS * math.sqrt(self.arrivals_per_s)
        value, least = workers.arrivals_per_s.value, self.arrivals_per_s
        is_near = least <= value <= least + noise
        yield "arrivals at the peak", least if is_near else workers.arrivals_per_s, least
        noise = _SIGMAS * math.sqrt(self.steady_parked)
        yield _within("parked at the peak", workers.parked, self.parked, noise)
        capacity = CAPACITY.parked * CAPACITY.utilisation
        least, most = (math.ceil((self.parked + by) / capacity) for by in (-noise, noise))
        enough = range(least, most + 1)
        yield "workers", workers.workers if workers.workers not in enough else enough, enough
        found = {timeout.kind: timeout for timeout in advice.timeouts}
        yield "kinds with advice on a timeout", sorted(found), sorted(self.timeouts_us)
        for kind, timeout in found.items():
            yield from self._compared_kind(kind, timeout)

    def _compared_kind(self, kind: str, found: TimeoutAdvice) -> Iterator[Comparison]:
        true_us = self.timeouts_us.get(kind)
        if true_us is None or found.advised_us is None:
            yield f"advised timeout of {kind}", found.advised_us, true_us
        else:
            low_us = (found.low_us or 0) / _BUCKET
            high_us = math.inf if found.high_us is None else found.high_us
            is_right = low_us <= true_us <= max(high_us, found.advised_us)
            advised = true_us if is_right else (low_us, found.advised_us, high_us)
            yield f"advised timeout of {kind}", advised, true_us
        if (share := self.expired_shares.get(kind)) is not None:
            deviation = math.sqrt(share * (1 - share) / found.operations)
            is_near = abs(found.expired_share - share) <= _SIGMAS * deviation + _RESTARTS * share
            yield f"expired share of {kind}", share if is_near else found.expired_share, share


def _within(what: str, peak: PeakLoad, true: float, noise: float) -> Comparison:
    return f"{what}, within {noise:.1f}", true if abs(peak.value - true) <= noise else peak, true


def _timeout_us(kind: Kind) -> float | None:
    seconds = kind.quantile(1 - TARGETS.expired)
    return seconds * 1e6 if seconds < kind.timeout else None
