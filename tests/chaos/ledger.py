"""What clients and handlers saw, written down by themselves: nothing here asks a store."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

AGAIN_MS = 300
# A job that its worker left behind is with another after this.
LEASE_MS = 2_000
# Of the handler "charge", in all processes.
MAX_RUNNING = 4
MAX_RUNNING_PER_KEY = 2
TICK_MS = 1_000


def wall_ms() -> int:
    """Return UTC milliseconds, rounded down."""
    return time.time_ns() // 1_000_000


class Run(NamedTuple):
    """A handler was called."""

    number: int
    job_id: str
    attempt: int
    outcome: str
    at_ms: int
    round: int = 0


class Tick(NamedTuple):
    """A run of the periodic handler was called."""

    job_id: str
    time_ms: int
    """The time of the series that it is for."""
    at_ms: int


class MendBook:
    """Jobs that fail until they are noted here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mend(self, job_id: str) -> None:
        """Let a job succeed from now on."""
        (self._folder / f"mended-{job_id}").touch()

    def is_mended(self, job_id: str) -> bool:
        """Return True iff a job is to succeed."""
        return (self._folder / f"mended-{job_id}").exists()


class RunBook:
    """The handlers' part, a file for each process. A line is written before the handler works."""

    def __init__(self, folder: Path) -> None:
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        self._file = _appended(folder / f"runs-{name}")
        self._ends = _appended(folder / f"ends-{name}")
        self._ticks = _appended(folder / f"ticks-{name}")

    def note(self, run: Run) -> None:
        """Write a run down: one system call, which a kill does not take back."""
        os.write(self._file, (" ".join(map(str, run)) + "\n").encode())

    def note_end(self, run: Run) -> None:
        """Write down that a run is about to end."""
        line = f"{run.job_id} {run.at_ms} {wall_ms()}\n"
        os.write(self._ends, line.encode())

    def note_tick(self, tick: Tick) -> None:
        """Write a run of the periodic handler down."""
        os.write(self._ticks, (" ".join(map(str, tick)) + "\n").encode())

    @staticmethod
    def read_ticks(folder: Path) -> list[Tick]:
        """Return every run of the periodic handler, as they began."""
        lines = [path.read_text().splitlines() for path in folder.glob("ticks-*")]
        parts = [line.split() for several in lines for line in several]
        ticks = [Tick(job_id, int(time), int(at)) for job_id, time, at in parts]
        return sorted(ticks, key=lambda tick: tick.at_ms)

    @staticmethod
    def read_spans(folder: Path) -> list[tuple[str, int, int]]:
        """Return the job, the beginning and the end of each run that ended."""
        lines = [path.read_text().splitlines() for path in folder.glob("ends-*")]
        parts = [line.split() for several in lines for line in several]
        return [(job_id, int(began), int(ended)) for job_id, began, ended in parts]

    @staticmethod
    def read(folder: Path) -> list[Run]:
        """Return every run of every process."""
        runs = []
        for path in sorted(folder.glob("runs-*")):
            for line in path.read_text().splitlines():
                number, job_id, attempt, outcome, at_ms, round_ = line.split()
                times = (int(at_ms), int(round_))
                runs.append(Run(int(number), job_id, int(attempt), outcome, *times))
        return runs


def _appended(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@dataclass(slots=True)
class Request:
    """A call by a client: `answered_ms` is None where no good answer came."""

    asked_ms: int
    answered_ms: int | None = None


@dataclass(slots=True)
class Deferred:
    """A job that a client asked for."""

    number: int
    keys: tuple[str, ...]
    on_fire: str
    added: Request
    job_id: str | None = None
    deadline_ms: int = 0
    cancels: list[Request] = field(default_factory=list)
    needed: int = 1
    """How many of its keys have to fire."""
    fails: bool = False
    """Its handler fails for good until it is mended, and then the job is retried."""
    rounds: int = 0
    """How often it waits again, without keys, for `AGAIN_MS`."""
    since_ms: int | None = None
    """When the client had the cursor since which fires count; None without one."""
    is_missing: bool = False
    """The service said 404 of a job that it had acknowledged."""

    @property
    def is_acknowledged(self) -> bool:
        """True iff the client was told that the job is stored."""
        return self.added.answered_ms is not None

    @property
    def cancelled_ms(self) -> int | None:
        """When the client was told that it is cancelled."""
        return min((c.answered_ms for c in self.cancels if c.answered_ms is not None), default=None)


@dataclass(slots=True)
class Ledger:
    """The clients' part."""

    jobs: list[Deferred] = field(default_factory=list)
    fires: dict[str, list[Request]] = field(default_factory=dict)
    refused: int = 0
    """Requests that were answered with 503, or not at all."""
    service_kills: int = 0
    store_kills: int = 0
    freezes: int = 0
    """Services that were stopped (SIGSTOP) for a while."""
    cuts: int = 0
    stalls: int = 0
    retried: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """From the answer to a pause until it was asked to end."""
    disturbances: list[tuple[int, int]] = field(default_factory=list)
    """While a service or its link to the store stood still: what it began before may end later."""
