"""A process that defers a job on each key it reads from standard input, and prints the key."""

import asyncio
import sys

from purgatory.jobs.model.spec import JobSpec
from purgatory.timer import SystemClock
from tests.step_methods import SqlSteps


async def defer_all(url: str) -> None:
    store = SqlSteps(url)
    await store.open()
    _say("ready")
    while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
        wall_ms = SystemClock().wall_ms()
        await store.add([JobSpec.of("note", wall_ms=wall_ms, delay=600, keys=[key])])
        _say(key)
    await store.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(defer_all(*sys.argv[1:]))
