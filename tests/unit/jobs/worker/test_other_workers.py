"""How often a process looks for another one that works on the same jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from purgatory.jobs.other_workers import MAX_PAUSE_S, OtherWorkers
from tests.unit.jobs.worker.runs import now_ms

HOUR_S = 3_600


class Store:
    """Lists this process, and others that were or are at work."""

    def __init__(self) -> None:
        self.asked = 0
        self.before: dict[str, int] = {}
        self.now: set[str] = {"here"}

    async def workers(self, *, limit: int) -> Mapping[str, int]:
        self.asked += 1
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
