"""Finished jobs are deleted in batches."""

from __future__ import annotations

from typing import cast

from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.worker.claiming import BATCH_PAUSE_S, PRUNE_EVERY_S, prune_history
from purgatory.jobs.worker.worker_store import WorkerStore
from tests.cases import cases
from tests.promises.kit import now_ms

LIMITS = JobLimits(history_age_ms=1_000, history_count=7)


class Pruned:
    """A store whose first batches are full."""

    limits = LIMITS

    def __init__(self, full_batches: int) -> None:
        self.full_batches = full_batches
        self.calls: list[tuple[int, int, int]] = []

    async def now_ms(self) -> int:
        return now_ms()

    async def prune(self, *, finished_before_ms: int, keep: int) -> bool:
        self.calls.append((now_ms(), finished_before_ms, keep))
        return len(self.calls) <= self.full_batches


@cases("full_batches", [0, 2])
async def test_batches_follow_each_other_until_one_is_not_full(full_batches: int) -> None:
    """After up to a minute, with a pause between them, and all by the same age."""
    store, start_ms = Pruned(full_batches), now_ms()
    await prune_history(cast(WorkerStore, store))
    assert len(store.calls) == full_batches + 1
    first_ms = store.calls[0][0]
    assert PRUNE_EVERY_S * 500 - 1 <= first_ms - start_ms <= PRUNE_EVERY_S * 1_000 + 1
    pause_ms = round(BATCH_PAUSE_S * 1_000)
    for number, (at_ms, before_ms, keep) in enumerate(store.calls):
        assert abs(at_ms - first_ms - number * pause_ms) <= number
        assert before_ms - (first_ms - LIMITS.history_age_ms) in (-1, 0, 1) and keep == 7
    assert now_ms() - store.calls[-1][0] >= pause_ms - 1
