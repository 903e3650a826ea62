"""Where rows go."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from purgatory.timer.clock import Clock


class Sink(ABC):
    """Takes batches of rows, on a thread of its own, where it may block and fail.

    Whoever writes a journal calls `open` first and then, on that thread, the rest.
    """

    # Rows that are safe, and what they are in.
    written = 0
    files = 0
    bytes = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """For statistics and logs; without passwords."""

    @abstractmethod
    def open(self, writer: str, clock: Clock) -> None:
        """Begin, for a writer whose name nobody else has, on the journal's clock.

        Raises what shows that it can never work.
        """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take `batch`. Where this raises, `abandon` says what became of it."""

    @abstractmethod
    def roll(self) -> None:
        """Make all rows safe that were taken."""

    @abstractmethod
    def abandon(self) -> int:
        """Let go of what failed; return how many rows that were taken are lost by it.

        The others are tried again by `roll`.
        """

    @property
    def due_ns(self) -> int | None:
        """When `roll` is due, on the journal's clock; None while nothing is."""
        return None

    def close(self) -> int:
        """Let go of everything; return how many rows that were taken are lost by it."""
        return self.abandon()
