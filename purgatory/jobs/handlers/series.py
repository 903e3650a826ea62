"""Periodic handlers: the times of their runs, and what a run says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from purgatory.jobs.model.job import Job
from purgatory.operations.watch_key import check_key
from purgatory.timer.clock import Seconds, seconds_of

if TYPE_CHECKING:
    from purgatory.jobs.handlers.handler import Handler

MIN_EVERY_MS: Final = 1_000
MAX_EVERY_MS: Final = 366 * 24 * 3_600 * 1_000

MARK: Final = "purgatory:periodic"
"""The concurrency key of every run, by which they are listed."""


class Grid(Protocol):
    """The times of a series; `str` describes them."""

    def after(self, wall_ms: int) -> int:
        """Return the first time that is later than `wall_ms`, in wall milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class EveryGrid:
    """Times at one distance, counted from 1970-01-01 UTC plus a phase: the same everywhere."""

    every_ms: int
    phase_ms: int = 0

    @classmethod
    def of(cls, every: Seconds, phase: Seconds) -> EveryGrid:
        """Return the grid of a distance and a phase; raise ValueError."""
        every_ms, phase_ms = (round(seconds_of(each) * 1_000) for each in (every, phase))
        if not MIN_EVERY_MS <= every_ms <= MAX_EVERY_MS or not 0 <= phase_ms < every_ms:
            raise ValueError(
                f"every is {every!r} and phase is {phase!r}: give seconds from 1 to a year, and a "
                "phase from 0 up to less than that"
            )
        return cls(every_ms, phase_ms)

    def after(self, wall_ms: int) -> int:
        """Return the first time that is later than `wall_ms`, in wall milliseconds."""
        return wall_ms + self.every_ms - (wall_ms - self.phase_ms) % self.every_ms

    def __str__(self) -> str:
        """Name the distance, and the phase if there is one."""
        phase = f", phase {self.phase_ms / 1_000:g} s" if self.phase_ms else ""
        return f"every {self.every_ms / 1_000:g} s{phase}"


@dataclass(slots=True)
class Series:
    """A handler that runs at the times of a grid."""

    handler: Handler
    grid: Grid
    catch_up: bool
    """A run that no process has started at its time is started later; else it is missed."""
    look_ms: int = 0
    """When to store the run after the one that is stored."""
    stored_ms: int = 0
    """The time of the run that was stored last; 0 before the first look."""
    refused: str | None = None
    """Why the store does not take the next run."""
    on_run: Callable[[], object] = lambda: None
    """Called as one of its runs begins here."""

    def __post_init__(self) -> None:
        """Raise InvalidKeyError for a name that leaves no room for a time."""
        check_key(self.request_key(10**13))

    @property
    def dedupe_key(self) -> str:
        """What all of its runs share."""
        return _key_of(self.handler.name)

    def request_key(self, at_ms: int) -> str:
        """Return the idempotency key of one run."""
        return f"{self.dedupe_key}:{at_ms}"


class RunTime(NamedTuple):
    """What the payload of a run says."""

    at_ms: int
    """The time of the series that it is for."""
    since_ms: int
    """When the process that stored it began: of two versions, the later one decides."""
    next_ms: int
    """The time after it."""
    grid: str


def run_time(job: Job) -> RunTime | None:
    """Return what a run of a series is for; None for any other job."""
    if job.dedupe_key != _key_of(job.handler) or job.owner is not None:
        return None
    match job.payload:
        case {"at": int(at_ms), "since": int(since_ms), "next": int(next_ms), "grid": str(grid)}:
            return RunTime(at_ms, since_ms, next_ms, grid)
    return None


def _key_of(handler: str) -> str:
    return f"{MARK}:{handler}"
