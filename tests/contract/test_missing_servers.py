"""Servers that are not there when a process starts: the log says it in one way for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from purgatory import Purgatory
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore
from purgatory.ownership import Ownership
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals

REDIS = "redis://127.0.0.1:1"


async def open_once(purgatory: Purgatory) -> None:
    async with purgatory:
        pass


async def own_nothing(store: RedisLeaseStore) -> None:
    async with Ownership(store, "http://10.0.0.7"):
        pass


@pytest.mark.parametrize(
    "start",
    [
        lambda: open_once(Purgatory(jobs=SqlJobStore("postgresql://u@127.0.0.1:1/d"))),
        lambda: open_once(Purgatory(jobs=RedisJobStore(REDIS, timeout=0.5))),
        lambda: open_once(Purgatory(signals=RedisSignals(REDIS, timeout=0.5))),
        lambda: own_nothing(RedisLeaseStore(REDIS, timeout=0.5)),
    ],
    ids=["SqlJobStore", "RedisJobStore", "RedisSignals", "RedisLeaseStore"],
)
async def test_a_store_that_is_away_is_an_error(
    caplog: pytest.LogCaptureFixture, start: Callable[[], Awaitable[None]]
) -> None:
    """Once, whichever store it is: the process starts, and is not ready."""
    caplog.set_level(logging.WARNING, "purgatory")
    await asyncio.wait_for(start(), 30)
    assert [each.levelname for each in caplog.records] == ["ERROR"]
