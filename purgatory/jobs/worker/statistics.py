"""What a worker has done, in numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Enough for a 99th percentile that means something.
_KEPT = 1_024


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after they were due jobs started here, in ms: the last 1,024, and the worst."""

    p50_ms: int
    p99_ms: int
    longest_ms: int
    """Since the start; what was missed while nobody ran does not count."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Taking up what was due while nobody ran."""

    is_finished: bool
    overdue: int
    """Jobs taken up so far that were due before this process looked."""
    missed: int
    """Of those, the ones that were skipped; also after an outage of the store."""
    spread: int
    """Of those, the ones that were put off; likewise."""


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """The jobs of one process at one moment.

    What has been done is counted when the store has acknowledged it.
    """

    held: int
    """Claimed by this process: they wait in its timer, or run."""
    running: int
    """Of those, the ones that are being started, run, or recorded."""
    done: int
    failed: int
    retried: int
    given_back: int
    """To others: on draining, or because this process lacks their handler."""
    lost: int
    """Runs whose end the store did not take, as another had taken over the lease by then; or as an
    earlier call, whose answer was lost, had given the job back."""
    lateness: Lateness
    recovery: Recovery
    outages: int
    store_error: str | None
    """What the store said last, where it fails now."""


class LatenessRecord:
    """Keeps the last latenesses."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._last: deque[int] = deque(maxlen=_KEPT)
        self._longest_ms = 0

    def add(self, lateness_ms: int) -> None:
        """Keep one."""
        self._last.append(lateness_ms)
        self._longest_ms = max(self._longest_ms, lateness_ms)

    def summary(self) -> Lateness:
        """Return what there is to say."""
        ordered = sorted(self._last) or [0]
        return Lateness(
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[len(ordered) * 99 // 100],
            longest_ms=self._longest_ms,
        )
