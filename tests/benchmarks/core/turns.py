"""Work in chunks, with a turn of the event loop after each, as in an application."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.benchmarks.comparison.stopwatch import cpu_ns

CHUNK = 1_000

# As many different delays as matter to a cache or a heap, at a fraction of the memory.
_DISTINCT = 100_000


def random_delays(count: int, units_per_ms: float = 1) -> list[float]:
    """Return `count` delays from 30 to 60 s, the same ones in every process.

    In whole milliseconds, as our timers take them, or in other units.
    """
    source = random.Random(20)
    distinct = [source.randrange(30_000, 60_000) * units_per_ms for _ in range(_DISTINCT)]
    return [distinct[index % _DISTINCT] for index in range(count)]


async def cpu_ns_each(
    work: Callable[[Sequence[float]], None], items: Sequence[float], count: int
) -> float:
    """Do `work` with `count` of `items`, chunk by chunk; return the CPU time for each, in ns.

    Includes the turns of the loop, and so whatever a loop puts off until then.
    """
    chunks = [items[start : start + CHUNK] for start in range(0, count, CHUNK)]
    started_ns = cpu_ns()
    for chunk in chunks:
        work(chunk)
        await asyncio.sleep(0)
    return (cpu_ns() - started_ns) / count
