"""What the other processes of the benchmark do."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from redis.asyncio import Redis

from purgatory import Purgatory
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.script_connection import MessageTap

_spawn = multiprocessing.get_context("spawn")


class Other:
    """Another process that runs one of the functions below, and reports through a pipe."""

    def __init__(self, run: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_run, args=(run, theirs, arguments), daemon=True)
        self._process.start()

    async def next(self) -> Any:
        """Return what the process reports next."""
        return await asyncio.to_thread(self.pipe.recv)

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _run(run: Callable[..., Awaitable[None]], pipe: Connection, arguments: Any) -> None:
    async def main() -> None:
        await run(pipe, *arguments)

    asyncio.run(main())


async def wait_for_each(pipe: Connection, url: str, count: int) -> None:
    """Park again and again; report when each wait has ended."""
    async with Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory:
        pipe.send("ready")
        cursor = purgatory.cursor("key")
        ended: list[int] = []
        for _ in range(count):
            outcome = await purgatory.park("key", timeout=60, cursor=cursor)
            ended.append(time.monotonic_ns())
            cursor = outcome.cursor
        pipe.send(ended)


async def receive_each(pipe: Connection, url: str, count: int) -> None:
    """Receive messages; report when each has come."""
    async with Redis.from_url(url) as client, client.pubsub() as pubsub:
        await pubsub.subscribe("bare")
        await pubsub.get_message(timeout=10)
        pipe.send("ready")
        ended: list[int] = []
        while len(ended) < count:
            if await pubsub.get_message(timeout=10) is not None:
                ended.append(time.monotonic_ns())
        pipe.send(ended)


async def receive_tapped(pipe: Connection, url: str, count: int) -> None:
    """Receive messages as a follower does, and do nothing with them; report when each has come."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    def take(data: bytes) -> bool:
        arrived.put_nowait(data)
        return True

    async with Redis.from_url(url) as client, client.pubsub() as pubsub:
        await pubsub.connect()
        assert MessageTap.attach(pubsub.connection, b"floor", take)
        await pubsub.subscribe("floor")
        await pubsub.get_message(timeout=10)
        pipe.send("ready")
        ended: list[int] = []
        for _ in range(count):
            await arrived.get()
            ended.append(time.monotonic_ns())
        pipe.send(ended)


async def follow(pipe: Connection, url: str, shards: int, count: int) -> None:
    """Follow without waits; report the CPU time and the lag when `count` signals were applied."""
    async with Purgatory(signals=RedisSignals(url, shards=shards, timeout=30)) as purgatory:
        before = cpu_s()
        pipe.send("ready")
        while _applied(purgatory) < count:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.02)
        pipe.send(cpu_s() - before)


def _applied(purgatory: Purgatory) -> int:
    assert purgatory.shared_signals is not None
    return purgatory.shared_signals.statistics().applied


def cpu_s() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
