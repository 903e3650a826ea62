"""How often a process looks for another one that works on the same jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore, StoreUnavailableError, other_workers
from purgatory.jobs.other_workers import LOOK_EVERY_S, MAX_PAUSE_S, OtherWorkers, overlap_ms
from tests.unit.jobs.worker.runs import Make, now_ms
from tests.unit.shared_logs import Logs

HOUR_S = 3_600


class Store:
    """Lists this process, and others that were or are at work."""

    def __init__(self) -> None:
        self.asked = 0
        self.limits: set[int] = set()
        self.is_down = False
        self.before: dict[str, int] = {}
        self.now: set[str] = {"here"}

    async def workers(self, *, limit: int) -> Mapping[str, int]:
        self.asked += 1
        self.limits.add(limit)
        if self.is_down:
            raise StoreUnavailableError("nobody listens")
        return self.before | dict.fromkeys(self.now, now_ms())


async def test_alone_it_looks_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """More often at first; a process that it replaced, long ago, changes nothing."""
    store = Store()
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    looking.start()
    await asyncio.sleep(HOUR_S / 10)
    store.now.add("replaced")
    await asyncio.sleep(100)
    store.now.remove("replaced")
    store.before["replaced"] = now_ms()
    await asyncio.sleep(HOUR_S)
    assert 6 <= store.asked <= 16
    before = store.asked
    await asyncio.sleep(24 * HOUR_S)
    assert store.asked - before <= 48
    await looking.stop()


async def test_another_one_that_comes_later_is_noticed_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the next look; from then on it looks each minute, and never again once it has warned."""
    caplog.set_level(logging.WARNING, "purgatory.jobs")
    store = Store()
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    looking.start()
    await asyncio.sleep(10 * HOUR_S)
    store.now.add("other")
    before = store.asked
    await asyncio.sleep(MAX_PAUSE_S + 180)
    (message,) = caplog.messages
    assert "another process, other," in message and store.asked - before <= 4
    before = store.asked
    await asyncio.sleep(24 * HOUR_S)
    assert store.asked == before
    await looking.stop()


async def test_how_long_it_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute at first, then twice as long up to an hour: or half of that, for some processes."""
    for share, choose in ((1.0, max), (0.5, min)):
        monkeypatch.setattr("random.uniform", choose)
        store = Store()
        looking = OtherWorkers(store, "here", overlap_ms=60_000)
        looking.start()
        pause_s, looks = LOOK_EVERY_S, 0
        while pause_s < MAX_PAUSE_S:
            await asyncio.sleep(0.001)
            looks += 1
            assert store.asked == looks
            await asyncio.sleep(pause_s * share - 0.002)
            assert store.asked == looks
            await asyncio.sleep(0.001)
            pause_s *= 2
        await asyncio.sleep(10.5 * MAX_PAUSE_S * share)
        assert store.asked == looks + 11
        await looking.stop()
        assert store.limits == {other_workers.LOOKED_AT}


async def test_an_outage_does_not_end_the_looking(caplog: pytest.LogCaptureFixture) -> None:
    """The worker reports it; another process is noticed afterwards."""
    store = Store()
    store.is_down = True
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    looking.start()
    await asyncio.sleep(HOUR_S)
    assert store.asked > 3 and not caplog.messages
    store.is_down = False
    store.now.add("other")
    await asyncio.sleep(3 * HOUR_S)
    assert "another process, other," in caplog.text
    await looking.stop()


async def test_stop_ends_the_looking() -> None:
    """Also a second time, and before it began."""
    store = Store()
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    await looking.stop()
    looking.start()
    await asyncio.sleep(1)
    for _ in range(2):
        await looking.stop()
        assert not is_looking()
    before = store.asked
    await asyncio.sleep(HOUR_S)
    assert store.asked == before


async def test_another_one_is_named_after_it_has_stayed_for_the_overlap() -> None:
    """Not a millisecond before, and counted from when it was seen first."""
    store = Store()
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    store.before = {"other": now_ms()}
    assert not await looking.look()
    # It was at work at the first look, and may have been replaced since.
    await asyncio.sleep(100)
    assert not await looking.look()
    for after_s, is_noticed in ((0, False), (59.999, False), (0.001, True)):
        await asyncio.sleep(after_s)
        store.now = {"other"}
        assert await looking.look() is is_noticed
        store.now = {"here"}


async def test_a_store_whose_jobs_nobody_ran_yet() -> None:
    """Whoever is seen after the first look counts."""
    store = Store()
    store.now = set()
    await asyncio.sleep(1)
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    assert not await looking.look()
    store.now = {"other"}
    assert not await looking.look()
    await asyncio.sleep(61)
    assert await looking.look()


async def test_no_more_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were seen first make room; one that is known needs none."""
    monkeypatch.setattr(other_workers, "MAX_WORKERS", 3)
    store = Store()
    looking = OtherWorkers(store, "here", overlap_ms=60_000)
    assert not await looking.look()
    for name in ("a", "b", "c", "d"):
        await asyncio.sleep(1)
        store.now = {name}
        assert not await looking.look()
    assert list(looking._first_ms) == ["b", "c", "d"]
    await asyncio.sleep(60)
    store.now = {"b"}
    assert await looking.look()


def test_a_process_may_be_seen_for_as_long_as_its_leases_and_its_drain_last() -> None:
    """And for a minute, while a deploy goes on."""
    assert overlap_ms(lease_ms=15_000, grace_ms=5_000) == 60_000
    assert overlap_ms(lease_ms=120_000, grace_ms=5_000) == 240_000
    assert overlap_ms(lease_ms=15_000, grace_ms=600_000) == 615_000


class ListingStore(MemoryJobStore):
    """Jobs that other processes might run, too."""

    async def workers(self, *, limit: int) -> Mapping[str, int]:
        return {}


def is_looking() -> bool:
    return "purgatory-other-workers" in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.parametrize("is_listing", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_only_processes_with_signals_of_their_own_look(
    make_purgatory: Make, *, is_listing: bool, is_shared: bool, is_allowed: bool
) -> None:
    """Those that share signals are wanted, as are those allowed; jobs in memory are of one."""
    store = (ListingStore if is_listing else MemoryJobStore)(now_ms=now_ms)
    purgatory: Purgatory = make_purgatory(jobs=store, signals=Logs() if is_shared else None)
    if is_allowed:
        purgatory.allow_separate_workers()
    async with purgatory:
        await asyncio.sleep(1)
        assert is_looking() is (is_listing and not is_shared and not is_allowed)
    assert not is_looking()
