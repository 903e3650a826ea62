"""Tasks park and another one fires."""

from __future__ import annotations

import asyncio

from purgatory import Purgatory
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import cpu_ns
from tests.benchmarks.core.stage import Contender, Figures, Plan, Stage, Step

TIMEOUT_MS = 30_000
TIMEOUT_S = TIMEOUT_MS / 1000
# So many that the turn of the loop that they share costs little.
TASKS = 100


class Parking:
    """Some tasks that wait, and one that ends their waiting. Subclasses say how."""

    def __init__(self) -> None:
        # How many wait since the last round of firing.
        self._waiting = 0

    async def run(self, count: int) -> Figures:
        """Let every task wait and be woken, until there were `count` wake-ups."""
        rounds = max(1, count // TASKS)
        started_ns = cpu_ns()
        tasks = [asyncio.create_task(self._wait(task, rounds)) for task in range(TASKS)]
        await asyncio.sleep(0)
        for _ in range(rounds):
            self._waiting = 0
            await self._fire_all()
            await self._all_wait_again(tasks)
        return {"a cycle": (cpu_ns() - started_ns) / (rounds * TASKS)}

    async def _all_wait_again(self, tasks: list[asyncio.Task[None]]) -> None:
        # A turn or two: an event would make it three.
        while self._waiting < TASKS and not tasks[-1].done():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)

    async def _wait(self, task: int, rounds: int) -> None:
        raise NotImplementedError

    async def _fire_all(self) -> None:
        raise NotImplementedError


class BareAwait(Parking):
    """A future is awaited, without a deadline and without a key."""

    def __init__(self) -> None:
        super().__init__()
        self._create_future = asyncio.get_running_loop().create_future
        self._futures: list[asyncio.Future[None]] = [self._create_future() for _ in range(TASKS)]

    async def _wait(self, task: int, rounds: int) -> None:
        for _ in range(rounds):
            self._futures[task] = self._create_future()
            self._waiting += 1
            await self._futures[task]

    async def _fire_all(self) -> None:
        for future in self._futures:
            future.set_result(None)


class WaitFor(BareAwait):
    """The same with a deadline: `asyncio.wait_for`."""

    async def _wait(self, task: int, rounds: int) -> None:
        for _ in range(rounds):
            self._futures[task] = self._create_future()
            self._waiting += 1
            await asyncio.wait_for(self._futures[task], TIMEOUT_S)


class TimeoutBlock(BareAwait):
    """The same with `asyncio.timeout`."""

    async def _wait(self, task: int, rounds: int) -> None:
        for _ in range(rounds):
            self._futures[task] = self._create_future()
            self._waiting += 1
            async with asyncio.timeout(TIMEOUT_S):
                await self._futures[task]


class OurDeadline(BareAwait):
    """The same with a deadline of our timer, and no key."""

    def __init__(self) -> None:
        super().__init__()
        self._timer = SystemTimer()
        ExpirationReaper(self._timer, asyncio.get_running_loop()).start()

    async def _wait(self, task: int, rounds: int) -> None:
        call_later = self._timer.call_later
        for _ in range(rounds):
            future = self._futures[task] = self._create_future()
            self._waiting += 1
            call = call_later(TIMEOUT_MS, future.cancel)
            try:
                await future
            finally:
                call.cancel()


class OurParking(Parking):
    """`park` and `fire`: a deadline, a key, a stored signal, and an Outcome."""

    def __init__(self) -> None:
        super().__init__()
        self._purgatory = Purgatory()
        self._keys = [f"order:{task}:paid" for task in range(TASKS)]

    async def run(self, count: int) -> Figures:
        """Park and fire in a purgatory that stays open for the next step."""
        if not self._purgatory.is_open:
            self._purgatory.open()
        return await super().run(count)

    async def _wait(self, task: int, rounds: int) -> None:
        park, key = self._purgatory.park, self._keys[task]
        for _ in range(rounds):
            self._waiting += 1
            await park(key, timeout=TIMEOUT_S)

    async def _fire_all(self) -> None:
        fire = self._purgatory.fire
        for key in self._keys:
            await fire(key)


def _steps(plan: Plan) -> list[Step]:
    return [Step("run", plan.parks)] * plan.rounds


PARKING = Stage(
    {
        "purgatory": Contender(OurParking),
        "call_later": Contender(OurDeadline),
        "wait_for": Contender(WaitFor),
        "asyncio.timeout": Contender(TimeoutBlock),
        "bare await": Contender(BareAwait),
    },
    _steps,
)
