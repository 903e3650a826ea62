"""The interface of sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from purgatory.timer.clock import Clock


class Sink(ABC):
    """Takes batches of rows, on a thread of its own, where it may block and fail.

    The journal calls `open` first and then, on that thread, the other methods.
    """

    # Rows that are written durably, and the files and bytes that they are in.
    written = 0
    files = 0
    bytes = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in statistics and logs; without passwords."""

    @abstractmethod
    def open(self, writer: str, clock: Clock) -> None:
        """Prepare to write, as the uniquely named `writer`, on the journal's clock.

        Called again after `close` if the journal is opened again. Raises an error if the sink can
        never work.
        """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take `batch`. If this raises, the journal calls `abandon`."""

    @abstractmethod
    def roll(self) -> None:
        """Write all rows that were taken durably."""

    @abstractmethod
    def abandon(self) -> int:
        """Release what failed; return how many of the rows that were taken are lost.

        `roll` retries the others.
        """

    @property
    def due_ns(self) -> int | None:
        """When `roll` is due, on the journal's clock; None if nothing is."""
        return None

    def close(self) -> int:
        """Release everything; return how many of the rows that were taken are lost."""
        return self.abandon()
