"""`make bench-signals`: signals through Redis, beside bare pub/sub in the same run."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from purgatory import Purgatory
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.script_connection import ScriptConnection
from purgatory.timer import compiled
from tests.benchmarks.comparison.process import Collector, this_machine
from tests.benchmarks.signals.others import (
    Other,
    cpu_s,
    follow,
    receive_each,
    receive_tapped,
    wait_for_each,
)
from tests.valkey_server import ValkeyServer

NOTES = """\
Valkey, this process and the others share the machine. From fire to answer: from before `fire` in
one process until the wait has ended in another, by the clock that they share; bare pub/sub: from
before `publish` until `get_message` has returned, with the same client and payload, in turns. The
least: a script of XADD and PUBLISH, sent and received as signals are, and nothing else.
Fires: up to 1,000 at once from one process, acknowledged. CPU for each of them: of the process that
fires, of the server, and of another process that follows without waits.
"""


_LEAST = """
redis.call('XADD', KEYS[1], '*', 'e', ARGV[1])
redis.call('PUBLISH', KEYS[2], ARGV[1])
return ''
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
    """Compare a fire with bare pub/sub, and with the least that a signal in a log can take."""
    rounds: int = options.rounds
    others = [Other(run, url, rounds) for run in (wait_for_each, receive_each, receive_tapped)]
    connection = ScriptConnection()
    async with (
        Purgatory(signals=RedisSignals(url, timeout=30)) as purgatory,
        Redis.from_url(url) as client,
    ):
        assert [await other.next() for other in others] == ["ready"] * 3
        await connection.open(client)
        script = ("EVALSHA", await client.script_load(_LEAST), 2, "floor:log", "floor")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: purgatory.fire("key", {"n": 1}),
            lambda: client.publish("bare", b'{"n":1}'),
            lambda: connection.send((*script, b'{"n":1}')),
        ]
        begun: list[list[int]] = [[], [], []]
        acknowledged = []
        for _ in range(rounds):
            for index, call in enumerate(calls):
                begun[index].append(time.monotonic_ns())
                await call()
                if index == 0:
                    acknowledged.append((time.monotonic_ns() - begun[0][-1]) / 1_000)
                await asyncio.sleep(0.001)
        times = [
            [(end - begin) / 1_000 for begin, end in zip(each, await other.next(), strict=True)]
            for each, other in zip(begun, others, strict=True)
        ]
        await connection.close()
    ours, bare, least = map(_quantiles, times)
    return [
        f"{'':34}{'p50':>9}{'p99':>9}",
        _row("fire in A to answer in B", ours),
        _row("bare pub/sub", bare),
        _row("XADD and PUBLISH in a script", least),
        _ratio("times bare pub/sub", ours, bare),
        _ratio("XADD and PUBLISH, times bare", least, bare),
        _row("fire acknowledged in A", _quantiles(acknowledged)),
    ]


def _row(name: str, quantiles: tuple[float, float]) -> str:
    return f"{name:34}{quantiles[0]:7.0f} us{quantiles[1]:7.0f} us"


def _ratio(name: str, one: tuple[float, float], other: tuple[float, float]) -> str:
    return f"{name:34}{one[0] / other[0]:9.2f}{one[1] / other[1]:9.2f}"


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
