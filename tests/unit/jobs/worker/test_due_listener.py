"""Announcements of the store wake the claimer."""

from __future__ import annotations

import asyncio

from purgatory.jobs.worker.claiming.due_listener import COLLECT_MS, SOON_MS, DueListener
from tests.unit.jobs.worker.parts import Parts
from tests.unit.jobs.worker.runs import now_ms


async def woken_after_ms(listener: DueListener, timeout_ms: int = 10_000) -> int:
    before_ms = now_ms()
    await listener.wait(timeout_ms)
    listener.reset()
    return now_ms() - before_ms


async def test_a_job_that_is_due_soon_is_claimed_at_once(parts: Parts) -> None:
    """Others are collected for a moment, and claimed together."""
    listener = parts.listener
    await parts.worker_store.now_ms()
    listener.on_due(now_ms() + SOON_MS)
    assert await woken_after_ms(listener) == 0
    listener.on_due(now_ms() + SOON_MS + 2)
    await asyncio.sleep(0.1)
    listener.on_due(now_ms() + 5_000)
    assert COLLECT_MS - 100 <= await woken_after_ms(listener) <= COLLECT_MS - 98
    assert listener.take_announced() and not listener.take_announced()
    assert await woken_after_ms(listener) == 10_000
    # Collected anew after that.
    listener.on_due(now_ms() + 50_000)
    assert COLLECT_MS <= await woken_after_ms(listener) <= COLLECT_MS + 2


async def test_before_the_first_claim_everything_is_soon(parts: Parts) -> None:
    """The store's clock is not known yet. Changes of jobs wake nobody."""
    parts.listener.on_change("0" * 32)
    assert not parts.listener.take_announced()
    parts.listener.on_due(now_ms() + 50_000)
    assert await woken_after_ms(parts.listener) == 0


async def test_a_close_wakes_once_and_for_all(parts: Parts) -> None:
    """The timer of what is collected is cancelled."""
    await parts.worker_store.now_ms()
    parts.listener.on_due(now_ms() + 5_000)
    parts.listener.close()
    assert await woken_after_ms(parts.listener) == 0
    assert await woken_after_ms(parts.listener) == 10_000
