"""Runs of handlers, and the wall clock of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purgatory import Purgatory
from purgatory.jobs import JobContext, RetryPolicy, WorkerSettings
from purgatory.testing import AutojumpEventLoop

Make = Callable[..., Purgatory]


def now_ms() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    return loop.clock.wall_ms()


def leap(ms: int) -> None:
    """The wall clock of the store goes on by that much, and nothing else does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    loop.clock.set_wall(now_ms() + ms)


def on_time(at_ms: list[int], wanted_ms: list[int]) -> bool:
    """Never early, and late by no more than two roundings up to a millisecond."""
    return len(at_ms) == len(wanted_ms) and all(
        0 <= at - wanted <= 2 for at, wanted in zip(at_ms, wanted_ms, strict=True)
    )


@dataclass
class Run:
    """One call of a handler."""

    at_ms: int
    job: JobContext
    payload: Any


class Log(list[Run]):
    """Notes every run."""

    async def __call__(self, job: JobContext, payload: Any) -> None:
        self.append(Run(now_ms(), job, payload))


def settings(**options: Any) -> WorkerSettings:
    return WorkerSettings(retry=RetryPolicy(first_ms=1_000, max_ms=8_000), **options)
