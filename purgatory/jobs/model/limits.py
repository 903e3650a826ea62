"""Bounds on delayed jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Every bound on jobs, each with its default. Reaching one is an error that names it."""

    max_payload_bytes: int = 64 * 1024
    """Bytes of JSON of one payload: a larger one raises InvalidPayloadError."""
    max_keys: int = 100
    """Keys that one job waits on: one more raises InvalidJobError."""
    max_waiting: int = 10_000_000
    """Jobs that wait or run, in all: one more raises StoreFullError. Batches that are under way
    at the same time may exceed it by their size."""
    max_attempts: int = 1_000
    """The most that a job's own max_attempts may be: more raises InvalidJobError."""
    max_lost_attempts: int = 10
    """A job that was started this often beyond its max_attempts, because its worker died each
    time, is failed instead of being started again."""
    max_delay_ms: int = 3_653 * 24 * 3_600 * 1_000
    """Ten years: a deadline beyond it raises InvalidDeadlineError."""
    past_tolerance_ms: int = 60_000
    """How far in the past an absolute deadline may lie, for clocks that differ; it is due now."""
    max_error_length: int = 2_000
    """Characters kept of an attempt's error."""
    max_batch: int = 1_000
    """The most jobs that a store reads or changes in one step; a larger `limit` is cut to it."""
    horizon_ms: int = 60_000
    """Jobs due within this are announced to workers, which keep them in their timers."""
    history_age_ms: int = 7 * 24 * 3_600 * 1_000
    """How long a finished job is kept, where `history_count` allows."""
    history_count: int = 1_000_000
    """How many finished jobs are kept: the earliest finished makes way."""

    max_quarantined: int = 1_000
    """How many records that were no jobs are kept: the earliest makes way, and stays counted."""
    max_quarantined_length: int = 2_000
    """Characters kept of such a record; bytes in Redis."""

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that is not positive."""
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} is {value!r}: a limit is a whole number above zero")

    def cut(self, limit: int | None) -> int:
        """Return `limit`, or `max_batch` if that is less or `limit` is None."""
        return self.max_batch if limit is None else min(limit, self.max_batch)
