"""An operation of a user's own, tasks that are parked, and counts."""

import asyncio
from collections.abc import Callable
from typing import Any

from purgatory import DelayedOperation, Outcome, Purgatory

Make = Callable[..., Purgatory]

Parked = asyncio.Task[Outcome]


class Waiting(DelayedOperation):
    """An operation of a user's own: completes once it is `completable`."""

    def __init__(self, delay_ms: int = 1_000) -> None:
        super().__init__(delay_ms)
        self.completable = False
        self.then: Callable[[], object] = lambda: None

    def try_complete(self) -> bool:
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.then()


async def parked(purgatory: Purgatory, *keys: str, timeout: float = 60, **options: Any) -> Parked:
    """A task that is parked by now."""
    before = purgatory.parked
    task = asyncio.create_task(purgatory.park(*keys, timeout=timeout, **options))
    await asyncio.sleep(0)
    assert purgatory.parked == before + 1
    return task


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


def outcomes(purgatory: Purgatory) -> tuple[int, int, int, int]:
    """How many fired, expired, were cancelled, were drained."""
    counts = purgatory.statistics()
    return counts.fired, counts.expired, counts.cancelled, counts.drained
