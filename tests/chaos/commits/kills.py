"""Kills around COMMIT."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable

from tests.chaos.commits.transactions import Verdict, judge, make_tables, run_transactions

# A commit takes milliseconds: what is killed so long after its begin is before, in or behind it.
LONGEST_DELAY_S = 0.012
MAX_TRANSACTIONS = 6


def run(url: str, kills: int, seed: int, say: Callable[[str], object]) -> Verdict:
    """Kill processes that commit on the database of `url`, which is empty; return what is left."""
    chance = random.Random(seed)
    asyncio.run(make_tables(url))
    for number in range(kills):
        kill_one(url, f"{seed}-{number}", chance)
        if number % 100 == 99:
            say(f"{number + 1} of {kills} processes were killed")
    return asyncio.run(judge(url))


def kill_one(url: str, name: str, chance: random.Random) -> None:
    """Start a process, and kill it around one of its commits."""
    ready, is_ready = os.pipe()
    # A fork has everything imported already: a thousand processes take minutes, not hours. No
    # thread runs here.
    process = os.fork()
    if not process:
        os.close(ready)
        try:
            asyncio.run(run_transactions(url, name, is_ready))
        finally:
            os._exit(1)
    os.close(is_ready)
    for _ in range(chance.randint(1, MAX_TRANSACTIONS)):
        if not os.read(ready, 1):
            raise AssertionError("the application has ended by itself")
    time.sleep(chance.random() * LONGEST_DELAY_S)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(ready)
