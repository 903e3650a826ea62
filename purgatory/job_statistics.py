"""The statistics of delayed jobs, apart from `purgatory.jobs`, which a purgatory may lack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late this process started jobs after they were due."""

    p50_ms: int
    """The median of the last 1,024."""
    p99_ms: int
    """The 99th percentile of the last 1,024."""
    longest_ms: int
    """The longest since the start, without jobs that were due while no process ran."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of jobs that were due while no process ran."""

    is_finished: bool
    """All of them have been claimed."""
    overdue: int
    """Jobs claimed so far that were due before the start."""
    missed: int
    """Of those, the ones that were skipped: `"misfire": "skip"`; also after an outage."""
    spread: int
    """Of those, the ones that were put off: `"misfire": "spread"`; also after an outage."""


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """The delayed jobs of this process since its start.

    A result is counted when the store has acknowledged it.
    """

    held: int
    """Claimed by this process: due soon, or running."""
    running: int
    """Of those, the ones that are being started, run, or recorded."""
    waiting: int
    """Of those, the ones that are due and wait for a slot."""
    done: int
    """Runs that succeeded."""
    failed: int
    """Jobs that failed and are not retried."""
    retried: int
    """Runs that failed and are retried."""
    again: int
    """Runs after which the job waits again."""
    given_back: int
    """Jobs left to other processes: on draining, or because this one lacks their handler."""
    put_off: int
    """Jobs that were due and found no room to wait for a slot: they are claimed again a little
    later, and no attempt is counted."""
    lost: int
    """Runs whose result the store refused, as a rule because another process had the lease."""
    lateness: Lateness
    """How late jobs were started."""
    recovery: Recovery
    """The recovery at the start."""
    outages: int
    """How often the job store was unavailable."""
    store_error: str | None
    """The last error of the store if it is failing now, else null."""
    states: dict[str, int] | None = None
    """Jobs in each state, in all processes, where the store was asked, as over HTTP; null if it
    does not respond. `blocked` are those of them that are due and wait for a slot or until their
    handler is resumed, and `quarantined` records that are not jobs."""
