"""Records in Redis with ids that no process has written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from purgatory.jobs import JobState
from purgatory.jobs.model import HandlerState, JobLimits, JobSpec
from tests.patience import PATIENCE_S
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer


@pytest.mark.parametrize("start", [b"\x80", b"\xff", b"\xc3"])
async def test_ids_that_are_no_text_end_no_count(redis_server: ValkeyServer, start: bytes) -> None:
    """A batch that ends with one is followed by the next, also if no record has the id."""
    prefix = f"damaged-{start.hex()}"
    store = RedisSteps(redis_server.url, prefix=prefix, limits=JobLimits(max_batch=2))
    await store.open()
    try:
        await store.add([JobSpec.of("note", wall_ms=0, delay=60) for _ in range(2)])
        client: Any
        with Redis.from_url(redis_server.url) as client:
            for number in range(5):
                client.zadd(f"{{{prefix}:jobs:0}}:waiting", {start + b"%d" % number: 0})
        async with asyncio.timeout(PATIENCE_S):
            counts = await store.handler_counts()
        assert counts == {HandlerState("note", JobState.WAITING): 2}
    finally:
        await store.close()
