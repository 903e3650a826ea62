"""Make docs/dashboard.png: `python -m tests.browser.picture [FILE]`, in about 80 s."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path

from purgatory import Purgatory
from tests.browser.devtools import browser
from tests.browser.test_dashboard import opened, serving
from tests.free_port import free_port

SECONDS = 70
KEYS = ("order:{}:paid", "invoice:{}:sent", "cart:{}", "user:{}:inbox", "build:{}")
TARGET = Path(__file__).parents[2] / "docs" / "dashboard.png"


def _key(choice: random.Random) -> str:
    # Few keys have many waiters, and most have few.
    return choice.choice(KEYS).format(int(choice.paretovariate(0.7)) % 200)


async def _wait(purgatory: Purgatory, choice: random.Random) -> None:
    while True:
        timeout = choice.choice((0.2, 1.0, 5.0, 25.0, 60.0, 600.0, 1_800.0))
        await purgatory.park(_key(choice), timeout=timeout * choice.uniform(0.5, 1.0))


async def _fire(purgatory: Purgatory, choice: random.Random) -> None:
    while True:
        await asyncio.sleep(choice.expovariate(20))
        await purgatory.fire(_key(choice), {"at": choice.random()})


async def _cancel(purgatory: Purgatory, choice: random.Random) -> None:
    while True:
        await asyncio.sleep(choice.expovariate(0.5))
        await purgatory.cancel(_key(choice))


async def _defer(purgatory: Purgatory, choice: random.Random) -> None:
    while True:
        await purgatory.defer("remind", delay=choice.uniform(300, 3_000), keys=[_key(choice)])
        await purgatory.defer("remind", delay=choice.uniform(0.1, 5.0))
        if choice.random() < 0.3:
            await (await purgatory.defer("remind", delay=900)).cancel()
        await asyncio.sleep(choice.expovariate(1))


async def make_picture(target: Path) -> None:
    """Write what the dashboard shows of a purgatory that is at work."""
    choice, port = random.Random(17), free_port()
    async with AsyncExitStack() as stack:
        purgatory = await stack.enter_async_context(serving(port))
        page = await stack.enter_async_context(browser())
        loads = cycle((_fire,) * 8 + (_cancel, _defer))
        tasks = [asyncio.create_task(_wait(purgatory, choice)) for _ in range(3_000)]
        tasks += [asyncio.create_task(next(loads)(purgatory, choice)) for _ in range(10)]
        await page.look(width=1280, height=1130)
        await opened(page, port)
        await asyncio.sleep(SECONDS)
        await page.picture(target, is_whole=False)
        assert not [task for task in tasks if task.done()], "a load has failed"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(make_picture(Path(sys.argv[1]) if sys.argv[1:] else TARGET))
