"""Jobs of other workers are given back, and claimed less often."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest

from purgatory.jobs.model.job import Job, new_job
from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.claiming import unhandled_jobs
from purgatory.jobs.worker.claiming.due_listener import SOON_MS, DueListener
from purgatory.jobs.worker.claiming.unhandled_jobs import NEAR_MS, SEEN_MS, UnhandledJobs
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.testing import MockClock

DELAY_MS = 8 * SOON_MS
HORIZON_MS = 60_000


class Store:
    """A store that gives back all but one job of each batch; also the listener."""

    batch = 3

    def __init__(self, clock: MockClock) -> None:
        self.clock = StoreClock(clock)
        self.clock.note(clock.wall_ms(), clock.now_ns())
        self.returns: list[list[GiveBack]] = []
        self.is_muted = False

    async def give_back(self, returns: Sequence[GiveBack]) -> list[bool]:
        assert self.is_muted, "its own announcements are ignored"
        self.returns.append(list(returns))
        return [number > 0 for number in range(len(returns))]

    @contextmanager
    def muted(self, own: Container[str]) -> Iterator[None]:
        self.is_muted = True
        yield
        self.is_muted = False


@pytest.fixture
def clock() -> MockClock:
    return MockClock(start_ms=1_000_000)


def job(due_ms: int, *, epoch: int = 1, attempt: int = 0) -> Job:
    return new_job(
        id=str(due_ms),
        handler="other",
        payload_json="null",
        deadline_ms=due_ms,
        due_ms=due_ms,
        created_ms=1,
        epoch=epoch,
        attempt=attempt,
    )


def unhandled(store: Store, counters: WorkerCounters, unmoved_ms: int = 0) -> UnhandledJobs:
    worker_store, listener = cast(WorkerStore, store), cast(DueListener, store)
    return UnhandledJobs(worker_store, listener, counters, DELAY_MS, unmoved_ms)


async def test_they_are_given_back_in_batches(clock: MockClock) -> None:
    """And counted if this process did it."""
    store, counters = Store(clock), WorkerCounters()
    jobs = [job(clock.wall_ms() + HORIZON_MS + number) for number in range(7)]
    await unhandled(store, counters).release(jobs)
    assert [len(batch) for batch in store.returns] == [3, 3, 1]
    assert [each.claim for batch in store.returns for each in batch] == [
        each.claim for each in jobs
    ]
    assert counters.given_back == 4 and not store.is_muted


@pytest.mark.parametrize(
    ("epoch", "attempt", "least_ms"),
    [(1, 0, SOON_MS), (3, 0, 2 * SOON_MS), (5, 0, 4 * SOON_MS), (5, 2, SOON_MS), (99, 0, DELAY_MS)],
)
async def test_what_is_due_is_put_off_by_more_each_time(
    clock: MockClock, epoch: int, attempt: int, least_ms: int
) -> None:
    """Each claim of it without an attempt doubles the delay, up to the maximum."""
    store = Store(clock)
    jobs = [job(clock.wall_ms(), epoch=epoch, attempt=attempt)] * 60
    await unhandled(store, WorkerCounters()).release(jobs)
    delays = [each.delay_ms for batch in store.returns for each in batch]
    assert all(delay is not None and least_ms <= delay <= 2 * least_ms for delay in delays)
    assert len(set(delays)) > 10, "not all at once"


@pytest.mark.parametrize(
    ("in_ms", "is_put_off"), [(0, True), (SOON_MS - 1, True), (NEAR_MS, False)]
)
async def test_what_is_due_later_is_given_back_unchanged(
    clock: MockClock, in_ms: int, is_put_off: bool
) -> None:
    """This process looks no further ahead for a while."""
    store = Store(clock)
    await unhandled(store, WorkerCounters()).release([job(clock.wall_ms() + in_ms)])
    assert (store.returns[0][0].delay_ms is not None) is is_put_off


async def test_what_others_will_find_at_their_next_poll_is_not_put_off_before(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is claimed; again for another round, and a minute later."""
    monkeypatch.setattr(unhandled_jobs, "MAX_SEEN", 2)
    store = Store(clock)
    jobs = unhandled(store, WorkerCounters(), unmoved_ms=2_000)
    first, other = job(clock.wall_ms()), job(clock.wall_ms() - 1)

    async def delay_ms(each: Job, *, epoch: int) -> int | None:
        await jobs.release([replace(each, epoch=epoch)])
        return store.returns[-1][0].delay_ms

    for epoch in (1, 3, 5):
        assert await delay_ms(first, epoch=epoch) is None
        clock.advance(666)
    clock.advance(2)
    put_off_ms = await delay_ms(first, epoch=7)
    assert put_off_ms is not None and SOON_MS <= put_off_ms <= 2 * SOON_MS
    assert await delay_ms(replace(first, round=1), epoch=9) is None
    assert await delay_ms(other, epoch=1) is not None, "no more are remembered"
    clock.advance(SEEN_MS - 2_000)
    assert await delay_ms(first, epoch=9) is None


def test_the_horizon_is_claimed_seldom_once_there_were_any(clock: MockClock) -> None:
    """In between only what is near."""
    jobs = unhandled(Store(clock), WorkerCounters())
    seen = [jobs.has_seen]
    assert jobs.ahead_ms(HORIZON_MS, 5_000) == HORIZON_MS
    jobs.note_horizon(has_seen=True)
    seen.append(jobs.has_seen)
    assert jobs.ahead_ms(HORIZON_MS, 5_000) == NEAR_MS
    assert jobs.ahead_ms(NEAR_MS - 1, 5_000) == NEAR_MS - 1
    clock.advance(4_999)
    assert jobs.ahead_ms(HORIZON_MS, 5_000) == NEAR_MS
    clock.advance(1)
    assert jobs.ahead_ms(HORIZON_MS, 5_000) == HORIZON_MS
    jobs.note_horizon(has_seen=False)
    assert [*seen, jobs.has_seen] == [False, True, False]
    assert jobs.ahead_ms(HORIZON_MS, 5_000) == HORIZON_MS
