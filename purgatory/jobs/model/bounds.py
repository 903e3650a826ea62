"""Bounds on how many jobs run at once, in all processes, and the places that jobs hold."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from purgatory.jobs.model.job import BLOCKED_BY_HANDLER_MS, BLOCKED_BY_KEY_MS, Job, Misfire


class Bounds(NamedTuple):
    """How many jobs of a handler may hold a place; None for any number."""

    handler: str
    max_running: int | None = None
    """In all."""
    max_running_per_key: int | None = None
    """With the same `concurrency_key`."""


class Place(NamedTuple):
    """The handler and the key that a place counts for, taken or free."""

    handler: str
    concurrency_key: str | None

    @classmethod
    def of(cls, job: Job) -> Place:
        """Return the place that a job holds, or waits for."""
        return cls(job.handler, job.concurrency_key)


class PlaceCounts:
    """How many places are taken.

    Invariant: _taken[place] == sum(Place.of(job) == place for jobs that hold one), and
    _taken[Place(handler, None)] == sum(job.handler == handler for jobs that hold one).
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: Counter[Place] = Counter()

    def add(self, place: Place, count: int = 1) -> None:
        """Count places as taken, or as free if `count` is negative."""
        for name in {place, Place(place.handler, None)}:
            self._taken[name] += count
            if not self._taken[name]:
                del self._taken[name]

    def room(self, bounds: Bounds, limit: int) -> int:
        """Return how many more jobs of the handler may hold a place, `limit` at most."""
        if bounds.max_running is None:
            return limit
        return max(0, min(limit, bounds.max_running - self._taken[Place(bounds.handler, None)]))

    def blocked_until_ms(self, job: Job, bounds: Bounds) -> int:
        """Return the end of the lease with which `job` waits for a place; 0 if there is one.

        A place that it holds already is not in its way.
        """
        # First by its key: in the queue of the handler it would only hold up others.
        place = Place.of(job)
        if place.concurrency_key and self._is_full(place, job, bounds.max_running_per_key):
            return BLOCKED_BY_KEY_MS
        if self._is_full(Place(job.handler, None), job, bounds.max_running):
            return BLOCKED_BY_HANDLER_MS
        return 0

    def _is_full(self, place: Place, job: Job, maximum: int | None) -> bool:
        if maximum is None:
            return False
        return self._taken[place] - (job.placed_ms is not None) >= maximum


def left_queue(old: Job, new: Job) -> Place | None:
    """Return the place of a job with a key that left the queue of its handler without one.

    Jobs that wait because of the same key may have been behind it, and behind nothing else.
    """
    has_left = new.lease_until_ms != old.lease_until_ms and new.placed_ms is None
    if old.lease_until_ms != BLOCKED_BY_HANDLER_MS or not has_left or old.concurrency_key is None:
        return None
    return Place.of(old)


def needs_place(job: Job, now_ms: int) -> bool:
    """Return True iff a claimed job of a bounded handler needs a place at once.

    Others get theirs when they start: what is not due yet; and what was missed, perhaps, for which
    its worker has to look first: if it waited for a place, it was not missed.
    """
    if job.placed_ms is not None or job.due_ms > now_ms:
        return False
    return not (job.is_undecided and job.misfire is not Misfire.RUN)
