"""An operation is watched and completed by a key, long before its deadline."""

from __future__ import annotations

import asyncio

from purgatory import DelayedOperation
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.operations import DelayedOperationPurgatory
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import cpu_ns
from tests.benchmarks.core.contenders.hand_made import HandMade
from tests.benchmarks.core.stage import Contender, Figures, Plan, Stage, Step

DELAY_MS = 30_000
DISTINCT = 1_000

Keys = tuple[str, ...]


def _keys(each: int) -> list[Keys]:
    return [tuple(f"order:{order}:{n}" for n in range(each)) for order in range(DISTINCT)]


class Watching:
    """Watch and complete, one operation after the other. Subclasses say how."""

    def __init__(self) -> None:
        self._by_count = {1: _keys(1), 3: _keys(3)}

    async def one_key(self, count: int) -> Figures:
        """Watch one key, and complete through it."""
        return {"1 key": await self._measure(1, count)}

    async def three_keys(self, count: int) -> Figures:
        """Watch three keys, and complete through the first."""
        return {"3 keys": await self._measure(3, count)}

    async def _measure(self, each: int, count: int) -> float:
        keys = self._by_count[each]
        rounds = max(1, count // DISTINCT)
        started_ns = cpu_ns()
        for _ in range(rounds):
            self._watch_and_complete(keys)
            await asyncio.sleep(0)
        return (cpu_ns() - started_ns) / (rounds * DISTINCT)

    def _watch_and_complete(self, keys: list[Keys]) -> None:
        raise NotImplementedError


class Order:
    """The state that the operations wait for."""

    __slots__ = ("completed", "is_paid")

    def __init__(self) -> None:
        self.is_paid = False
        self.completed = 0


ORDER = Order()


class OrderOperation(DelayedOperation):
    """The user's operation: its condition is tried three times, and then it does its work."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Complete once the order is paid."""
        return self.force_complete() if ORDER.is_paid else False

    def on_complete(self) -> None:
        """Do the work."""
        ORDER.completed += 1


class OurWatching(Watching):
    """A DelayedOperationPurgatory."""

    def __init__(self) -> None:
        super().__init__()
        timer = SystemTimer()
        ExpirationReaper(timer, asyncio.get_running_loop()).start()
        self._core = DelayedOperationPurgatory("bench", timer)

    def _watch_and_complete(self, keys: list[Keys]) -> None:
        watch, check = self._core.try_complete_else_watch, self._core.check_and_complete
        for each in keys:
            ORDER.is_paid = False
            watch(OrderOperation(DELAY_MS), each)
            ORDER.is_paid = True
            check(each[0])


class HandMadeWatching(Watching):
    """A future, a call_later and a dict by hand, without callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self._by_hand = HandMade(asyncio.get_running_loop())

    def _watch_and_complete(self, keys: list[Keys]) -> None:
        wait, fire = self._by_hand.wait, self._by_hand.fire
        for each in keys:
            wait(each, DELAY_MS / 1000)
            fire(each[0])


def _steps(plan: Plan) -> list[Step]:
    return [
        Step("one_key", plan.operations),
        Step("three_keys", plan.operations),
    ] * plan.rounds


WATCHING = Stage(
    {"purgatory": Contender(OurWatching), "by hand": Contender(HandMadeWatching)}, _steps
)
