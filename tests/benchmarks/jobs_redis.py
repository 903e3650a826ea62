"""Defer and acknowledge against the bare commands, on the same server in the same run.

    python -m tests.benchmarks.jobs_redis

Sixty-four callers, each of which waits for its acknowledgement before it asks again. The bare side
is a ZADD and an HSET for each, pipelined by the same group commit, through the same client.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from redis.asyncio import Redis

from purgatory.jobs import Added, JobSpec
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.redis.group_commit import GroupCommit
from tests.contract.redis_server import RedisServer

CALLERS = 64
JOBS = 12_800
ROUNDS = 7
PAYLOAD = {"order": 42, "customer": "c-1001", "reason": "unpaid"}


def specs() -> list[JobSpec]:
    """Jobs of the next hour, one in two with a watch key."""
    return [
        JobSpec.of(
            "cancel-order",
            PAYLOAD,
            wall_ms=1_800_000_000_000 + number,
            delay=number % 3_600,
            keys=[f"order:{number}:paid"] if number % 2 else [],
        )
        for number in range(JOBS)
    ]


class Bare:
    """A ZADD and an HSET for each job, sent together with those of the others."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)
        self._commit = GroupCommit(self._send)

    async def add(self, spec: JobSpec) -> None:
        await self._commit.do([spec.payload_json.encode(), spec.id.encode()])

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, steps: list[bytes]) -> list[bytes]:
        async with self._client.pipeline(transaction=False) as pipe:
            for place in range(0, len(steps), 2):
                pipe.execute_command("ZADD", "bare:due", place, steps[place + 1])
                pipe.execute_command("HSET", "bare:jobs", steps[place + 1], steps[place])
            await pipe.execute()
        return steps


async def callers(add: Callable[[JobSpec], Awaitable[None]]) -> float:
    """Return how many a second are acknowledged."""
    left = specs()

    async def caller() -> None:
        while left:
            await add(left.pop())

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return JOBS / (time.perf_counter() - start)


async def measure(server: RedisServer) -> tuple[list[float], list[float], float]:
    """Return the rates of each round, and the bytes that a waiting job takes."""
    bare, store = Bare(server.url), RedisJobStore(server.url)
    await store.open()

    async def add(spec: JobSpec) -> None:
        (added,) = await store.add([spec])
        assert isinstance(added, Added), added

    bare_rates, our_rates = [], []
    memory = 0.0
    for _ in range(ROUNDS):
        # Each round on an empty server, so that none of the two pays for what the other left.
        with server.client() as client:
            client.execute_command("FLUSHALL", "SYNC")
            bare_rates.append(await callers(bare.add))
            client.execute_command("FLUSHALL", "SYNC")
            before = int(client.info("memory")["used_memory"])
            our_rates.append(await callers(add))
            memory = (int(client.info("memory")["used_memory"]) - before) / JOBS
    await store.close()
    await bare.close()
    return bare_rates, our_rates, memory


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), appendfsync="everysec").start()
        try:
            bare, ours, memory = asyncio.run(measure(server))
        finally:
            server.kill()
    ratio = statistics.median(one / other for one, other in zip(bare, ours, strict=True))
    sys.stdout.write(
        f"bare ZADD + HSET      {statistics.median(bare):>10,.0f} jobs/s\n"
        f"defer + acknowledge   {statistics.median(ours):>10,.0f} jobs/s\n"
        f"ratio                 {ratio:>10.2f} (limit 1.5)\n"
        f"memory of a job       {memory:>10,.0f} bytes\n"
    )


if __name__ == "__main__":
    main()
