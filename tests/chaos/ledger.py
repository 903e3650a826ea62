"""What clients and handlers saw, written down by themselves: nothing here asks a store."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


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


class RunBook:
    """The handlers' part, a file for each process. A line is written before the handler works."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"runs-{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, number: int, job_id: str, attempt: int, outcome: str) -> None:
        """Write a run down: one system call, which a kill does not take back."""
        os.write(self._file, f"{number} {job_id} {attempt} {outcome} {wall_ms()}\n".encode())

    @staticmethod
    def read(folder: Path) -> list[Run]:
        """Return every run of every process."""
        runs = []
        for path in sorted(folder.glob("runs-*")):
            for line in path.read_text().splitlines():
                number, job_id, attempt, outcome, at_ms = line.split()
                runs.append(Run(int(number), job_id, int(attempt), outcome, int(at_ms)))
        return runs


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
