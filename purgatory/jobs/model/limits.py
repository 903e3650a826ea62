"""Bounds on delayed jobs, and on how many of them run at once, in all processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from purgatory.jobs.model.job import BlockedBy, Job, Misfire

__all__ = ["Bounds", "JobLimits"]


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


class Bounds(NamedTuple):
    """How many jobs of a handler may hold a slot; None for any number."""

    handler: str
    max_running: int | None = None
    """In all."""
    max_running_per_key: int | None = None
    """With the same `concurrency_key`."""


class Slot(NamedTuple):
    """The handler and the key that a slot counts for, taken or free."""

    handler: str
    concurrency_key: str | None

    @classmethod
    def of(cls, job: Job) -> Slot:
        """Return the slot that a job holds, or waits for."""
        return cls(job.handler, job.concurrency_key)


class SlotCounts:
    """How many slots are taken.

    Invariant: _taken[slot] == sum(Slot.of(job) == slot for jobs that hold one), and
    _taken[Slot(handler, None)] == sum(job.handler == handler for jobs that hold one).
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: Counter[Slot] = Counter()

    def add(self, slot: Slot, count: int = 1) -> None:
        """Count slots as taken, or as free if `count` is negative."""
        for name in {slot, Slot(slot.handler, None)}:
            self._taken[name] += count
            if not self._taken[name]:
                del self._taken[name]

    def room(self, bounds: Bounds, limit: int) -> int:
        """Return how many more jobs of the handler may hold a slot, `limit` at most."""
        if bounds.max_running is None:
            return limit
        return max(0, min(limit, bounds.max_running - self._taken[Slot(bounds.handler, None)]))

    def blocked_by(self, job: Job, bounds: Bounds) -> BlockedBy | None:
        """Return what keeps `job` from having a slot; None if nothing does.

        A slot that it holds already is not in its way.
        """
        # First by its key: in the queue of the handler it would only hold up others.
        slot = Slot.of(job)
        if slot.concurrency_key and self._is_full(slot, job, bounds.max_running_per_key):
            return BlockedBy.MAX_RUNNING_PER_KEY
        if self._is_full(Slot(job.handler, None), job, bounds.max_running):
            return BlockedBy.MAX_RUNNING
        return None

    def _is_full(self, slot: Slot, job: Job, maximum: int | None) -> bool:
        if maximum is None:
            return False
        return self._taken[slot] - (job.slot_ms is not None) >= maximum


def left_queue(old: Job, new: Job) -> Slot | None:
    """Return what a job with a key waited for, if it left the queue of its handler without a slot.

    Jobs that wait because of the same key may have been behind it, and behind nothing else.
    """
    has_left = new.blocked_by is not old.blocked_by and new.slot_ms is None
    if old.blocked_by is not BlockedBy.MAX_RUNNING or not has_left or old.concurrency_key is None:
        return None
    return Slot.of(old)


def needs_slot(job: Job, now_ms: int) -> bool:
    """Return True iff a claimed job of a bounded handler needs a slot at once.

    Others get theirs when they start: what is not due yet; and what was missed, perhaps, for which
    its worker has to look first: if it waited for a slot, it was not missed.
    """
    if job.slot_ms is not None or job.due_ms > now_ms:
        return False
    return not (job.is_undecided and job.misfire is not Misfire.RUN)
