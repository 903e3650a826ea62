"""Settings of a worker, and what it counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from purgatory.job_statistics import Lateness
from purgatory.retry_policy import RetryPolicy

_RETRY: Final = RetryPolicy(first_ms=1_000, max_ms=15 * 60 * 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a process runs jobs. Times are whole milliseconds."""

    max_running: int = 100
    """Async handlers that run at once in this process, besides those with slots of their own."""
    max_threads: int = 32
    """Handlers that are not async and run at once in this process, each in a thread."""
    max_held: int = 10_000
    """Jobs that wait in this process's timer; as many again may be due at once. A quarter of it may
    wait for the slots of each handler that has its own."""
    lease_ms: int = 15_000
    """How long a job stays with a worker that has stopped, such as one that was killed."""
    poll_ms: int = 1_000
    """How often to look for jobs of other processes, if the store does not announce them."""
    misfire_after_ms: int = 1_000
    """A job is missed if it was due longer than this before a worker looked: see its `misfire`."""
    spread_ms: int = 60_000
    """Missed jobs with `misfire="spread"` run within this."""
    grace_ms: int = 5_000
    """How long handlers may still run once the purgatory drains."""
    retry: RetryPolicy = _RETRY
    """When a failed job is tried again, unless its handler says otherwise."""
    runs_handlers: bool = True
    """False in processes that only defer; `purgatory worker` runs them whatever this says."""

    def __post_init__(self) -> None:
        """Raise ValueError for a number that is not whole, or too small."""
        if not isinstance(self.retry, RetryPolicy):
            raise ValueError(f"retry is {self.retry!r}: give a RetryPolicy")
        for name in self.__slots__:
            value = getattr(self, name)
            if name in ("retry", "runs_handlers"):
                continue
            least = 0 if name in ("grace_ms", "misfire_after_ms") else 1
            # Floats too are refused: a database that counts in integers would fail later.
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}: give a whole number from {least}")


# Enough for a meaningful 99th percentile.
_SAMPLES = 1_024


class LatenessRecord:
    """Samples of lateness."""

    def __init__(self) -> None:
        """Begin without samples."""
        self._last: deque[int] = deque(maxlen=_SAMPLES)
        self._longest_ms = 0

    def add(self, lateness_ms: int) -> None:
        """Add a sample; it may replace the oldest."""
        self._last.append(lateness_ms)
        self._longest_ms = max(self._longest_ms, lateness_ms)

    def summary(self) -> Lateness:
        """Return percentiles of the samples, and the maximum since the start."""
        ordered = sorted(self._last) or [0]
        return Lateness(
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[len(ordered) * 99 // 100],
            longest_ms=self._longest_ms,
        )


@dataclass(slots=True)
class WorkerCounters:
    """What a worker did since its start, counted where it happens; `JobStatistics` explains."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    again: int = 0
    given_back: int = 0
    put_off: int = 0
    lost: int = 0
    lateness: LatenessRecord = field(default_factory=LatenessRecord)
