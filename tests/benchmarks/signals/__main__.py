"""`make bench-signals`: signals through Redis, beside bare pub/sub in the same run."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from purgatory import Purgatory
from purgatory.signals.redis import RedisSignals
from purgatory.timer import compiled
from tests.benchmarks.comparison.collector import Collector
from tests.benchmarks.comparison.machine import this_machine
from tests.benchmarks.signals.others import Other, cpu_s, follow, receive_each, wait_for_each
from tests.valkey_server import ValkeyServer

NOTES = """\
Valkey, this process and the others share the machine. From fire to answer: from before `fire` in
one process until the wait has ended in another, by the clock that they share; bare pub/sub: from
before `publish` until `get_message` has returned, with the same client and payload, in turns.
Fires: up to 1,000 at once from one process, acknowledged. CPU for each of them: of the process that
fires, of the server, and of another process that follows without waits.
"""


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench-signals ARGS=...", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2_000, help="signals of each latency")
    parser.add_argument("--fires", type=int, default=20_000, help="fires of each throughput")
    options = parser.parse_args()
    machine = this_machine(Collector.SERVICE)
    form = "compiled" if compiled else "plain Python"
    sys.stdout.write(f"core {form}; {machine.python}; {machine.cores} cores; load {machine.load}\n")
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder)) as server:
        for measure in (latency, fan_out, throughput, start_up):
            with server.client() as client:
                client.flushall()
            for line in asyncio.run(measure(server.url, options)):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    sys.stdout.write("\n" + NOTES)
    return 0


def _quantiles(microseconds: list[float]) -> tuple[float, float]:
    return statistics.median(microseconds), statistics.quantiles(microseconds, n=100)[98]


async def latency(url: str, options: argparse.Namespace) -> list[str]:
    """Compare a fire with bare pub/sub."""
    rounds: int = options.rounds
    waiter, receiver = Other(wait_for_each, url, rounds), Other(receive_each, url, rounds)
    async with (
        Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory,
        Redis.from_url(url) as client,
    ):
        assert [await waiter.next(), await receiver.next()] == ["ready", "ready"]
        fired, published, acknowledged = [], [], []
        for _ in range(rounds):
            fired.append(time.monotonic_ns())
            await purgatory.fire("key", {"n": 1})
            acknowledged.append((time.monotonic_ns() - fired[-1]) / 1_000)
            await asyncio.sleep(0.001)
            published.append(time.monotonic_ns())
            await client.publish("bare", b'{"n":1}')
            await asyncio.sleep(0.001)
        ours = [
            (end - begin) / 1_000 for begin, end in zip(fired, await waiter.next(), strict=True)
        ]
        bare = [
            (end - begin) / 1_000
            for begin, end in zip(published, await receiver.next(), strict=True)
        ]
    (our_p50, our_p99), (bare_p50, bare_p99) = _quantiles(ours), _quantiles(bare)
    ack_p50, ack_p99 = _quantiles(acknowledged)
    return [
        f"{'':34}{'p50':>9}{'p99':>9}",
        f"{'fire in A to answer in B':34}{our_p50:7.0f} us{our_p99:7.0f} us",
        f"{'bare pub/sub':34}{bare_p50:7.0f} us{bare_p99:7.0f} us",
        f"{'times bare pub/sub':34}{our_p50 / bare_p50:9.2f}{our_p99 / bare_p99:9.2f}",
        f"{'fire acknowledged in A':34}{ack_p50:7.0f} us{ack_p99:7.0f} us",
    ]


async def fan_out(url: str, options: argparse.Namespace) -> list[str]:
    """Measure until the last of four processes has answered."""
    rounds = max(100, options.rounds // 10)
    others = [Other(wait_for_each, url, rounds) for _ in range(4)]
    async with Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory:
        for other in others:
            await other.next()
        fired = []
        for _ in range(rounds):
            fired.append(time.monotonic_ns())
            await purgatory.fire("key")
            await asyncio.sleep(0.005)
        ends = [await other.next() for other in others]
    last = [(max(each) - begin) / 1_000 for begin, *each in zip(fired, *ends, strict=True)]
    p50, p99 = _quantiles(last)
    return [f"{'the last of 4 workers':34}{p50:7.0f} us{p99:7.0f} us"]


async def throughput(url: str, options: argparse.Namespace) -> list[str]:
    """Measure fires through one, four and sixteen logs, and what a follower takes."""
    lines = [f"{'':34}{'fires/s':>9}{'CPU: firing':>14}{'Valkey':>10}{'follower':>10}"]
    fires: int = options.fires
    for shards in (1, 4, 16):
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Redis.from_url(url))
            await client.flushall()
            follower = Other(follow, url, shards, fires)
            stack.callback(follower.stop)
            purgatory = await stack.enter_async_context(
                Purgatory(signals=RedisSignals(url, shards=shards, timeout=30))
            )
            await follower.next()
            keys = [f"key:{number}" for number in range(1_000)]
            started_ns, own_s, server_s = time.monotonic_ns(), cpu_s(), await _server_cpu_s(client)
            for _ in range(fires // len(keys)):
                await asyncio.gather(*(purgatory.fire(key, 1) for key in keys))
            seconds, own_s = (time.monotonic_ns() - started_ns) / 1e9, cpu_s() - own_s
            follower_s = await follower.next()
            server_s = await _server_cpu_s(client) - server_s
        cells = [f"{each * 1e6 / fires:7.1f} us" for each in (own_s, server_s, follower_s)]
        name = "1 log" if shards == 1 else f"{shards} logs"
        lines.append(f"{name:34}{fires / seconds:9,.0f}{cells[0]:>14}{cells[1]}{cells[2]}")
    return lines


async def _server_cpu_s(client: Redis) -> float:
    used = await client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def start_up(url: str, options: argparse.Namespace) -> list[str]:
    """Measure opening a purgatory while the log is full."""
    async with Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory:
        limit = purgatory.limits.max_signals
        for start in range(0, limit, 1_000):
            await asyncio.gather(
                *(
                    purgatory.fire(f"key:{number % 5_000}", 1)
                    for number in range(start, start + 1_000)
                )
            )
    started_ns = time.monotonic_ns()
    async with Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory:
        seconds = (time.monotonic_ns() - started_ns) / 1e9
        kept = purgatory.signals.statistics().signals
    async with Redis.from_url(url) as client:
        memory = (await client.info("memory"))["used_memory"] / kept
    return [
        f"{f'start-up with {kept:,} signals':34}{seconds:7.2f} s",
        f"{'memory of Redis for a signal':34}{memory:7.0f} B",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
