"""The load of Kafka's benchmark of its timer, as requests."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from purgatory import DelayedOperation, Purgatory
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import cpu_ns, wall_ns
from tests.benchmarks.core.contenders.hand_made import HandMade, Waiter
from tests.benchmarks.core.stage import Contender, Figures, Plan, Stage, Step

RATE_PER_S = 100_000
TIMEOUT_MS = 200
KEY_SPACE = 100
KEYS_EACH = 3

# The quantile of the normal distribution below which three quarters lie.
_QUARTILE = 0.67449


Event = tuple[int, int, bool]
"""(time in ns, number of a request, whether it arrives rather than completes). Not a named tuple:
to take one apart costs three times as much, and is the load's, not the timer's."""


@dataclass(frozen=True, slots=True)
class KafkaLoad:
    """Poisson arrivals, and completions after latencies of a log-normal distribution."""

    median_ms: int
    """Half of the latencies are below."""
    quartile_ms: int
    """Three quarters of the latencies are below."""

    def keys(self) -> tuple[str, ...]:
        """Return the keys that all requests share, drawn once."""
        return tuple(str(key) for key in random.Random(22).sample(range(KEY_SPACE), KEYS_EACH))

    def events(self, count: int) -> list[Event]:
        """Return the events of `count` requests, in order of time.

        A request with a latency beyond the timeout has no completion: it expires.
        """
        source = random.Random(23)
        mu = math.log(self.median_ms)
        sigma = (math.log(self.quartile_ms) - mu) / _QUARTILE
        events: list[Event] = []
        at_s = 0.0
        for request in range(count):
            at_s += source.expovariate(RATE_PER_S)
            events.append((round(at_s * 1e9), request, True))
            latency_ms = source.lognormvariate(mu, sigma)
            if latency_ms < TIMEOUT_MS:
                at_ns = round((at_s + latency_ms / 1000) * 1e9)
                events.append((at_ns, request, False))
        return sorted(events)


# Kafka's published settings: about 8 % and 50 % expire.
LOW = KafkaLoad(20, 60)
HIGH = KafkaLoad(200, 400)


# The maximum of events between two turns of the loop.
BATCH = 256

NS_PER_MS = 1_000_000
NEVER_NS = 2**62


class Request(DelayedOperation):
    """Parked until it is completed by force, as in the original."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Return False: it is completed by force only."""
        return False

    def on_complete(self) -> None:
        """Do nothing."""


class KafkaRequests:
    """Runs a load and measures the CPU time of a request, with that of the load's driver."""

    async def low(self, count: int) -> Figures:
        """Run the load of which about 8 % expires."""
        return {"low": await self._measure(LOW, count)}

    async def high(self, count: int) -> Figures:
        """Run the load of which half expires."""
        return {"high": await self._measure(HIGH, count)}

    async def _measure(self, load: KafkaLoad, count: int) -> float:
        events, keys = load.events(count), load.keys()
        started_ns = cpu_ns()
        await self._replay(events, keys)
        return (cpu_ns() - started_ns) / count

    async def _replay(self, events: list[Event], keys: tuple[str, ...]) -> None:
        raise NotImplementedError


class SimulatedRequests(KafkaRequests):
    """A DelayedOperationPurgatory; time jumps from event to event and from bucket to bucket."""

    def __init__(self) -> None:
        self._clock = MockClock(1_000)
        self._timer = SystemTimer(clock=self._clock)
        self._timer.on_earlier = self._on_earlier
        self._core = DelayedOperationPurgatory("bench", self._timer)
        self._armed_ns = NEVER_NS

    async def _replay(self, events: list[Event], keys: tuple[str, ...]) -> None:
        start_ns = self._clock.now_ns()
        requests: list[Request] = []
        watch = self._core.try_complete_else_watch
        for at_ns, request, is_arrival in events:
            self._pass_time(start_ns + at_ns)
            if is_arrival:
                requests.append(Request(TIMEOUT_MS))
                watch(requests[-1], keys)
            else:
                requests[request].force_complete()
        self._pass_time(self._clock.now_ns() + 2 * TIMEOUT_MS * NS_PER_MS)
        assert self._core.delayed == 0

    def _pass_time(self, until_ns: int) -> None:
        # As a reaper does: it sleeps until the next bucket.
        clock, timer = self._clock, self._timer
        while self._armed_ns <= until_ns:
            clock.advance_ns(max(0, self._armed_ns - clock.now_ns()))
            timer.advance_clock()
            next_ms = timer.next_expiration_ms()
            self._armed_ns = NEVER_NS if next_ms is None else next_ms * NS_PER_MS
        clock.advance_ns(until_ns - clock.now_ns())

    def _on_earlier(self, expiration_ms: int) -> None:
        self._armed_ns = expiration_ms * NS_PER_MS


class RealRequests(KafkaRequests):
    """Runs on the event loop in real time without parking: the cost of the driver alone."""

    async def _replay(self, events: list[Event], keys: tuple[str, ...]) -> None:
        start_ns = wall_ns()
        position = 0
        while position < len(events):
            wait_ns = events[position][0] - (wall_ns() - start_ns)
            await asyncio.sleep(max(0, wait_ns) / 1e9)
            position = self._handle_due(events, position, wall_ns() - start_ns, keys)
        await asyncio.sleep((TIMEOUT_MS + 100) / 1000)
        assert not self._waiting()

    def _handle_due(
        self, events: list[Event], position: int, now_ns: int, keys: tuple[str, ...]
    ) -> int:
        park, complete = self._park, self._complete
        for at_ns, request, is_arrival in events[position : position + BATCH]:
            if at_ns > now_ns:
                break
            if is_arrival:
                park(keys)
            else:
                complete(request)
            position += 1
        return position

    def _park(self, keys: tuple[str, ...]) -> None:
        """Let the next request arrive."""

    def _complete(self, request: int) -> None:
        """Complete one."""

    def _waiting(self) -> bool:
        return False


class OurRequests(RealRequests):
    """An open Purgatory, with its limits and its reaper."""

    async def _replay(self, events: list[Event], keys: tuple[str, ...]) -> None:
        self._requests: list[Request] = []
        async with Purgatory() as self._purgatory:
            await super()._replay(events, keys)

    def _park(self, keys: tuple[str, ...]) -> None:
        request = Request(TIMEOUT_MS)
        self._requests.append(request)
        self._purgatory.park_operation(request, keys)

    def _complete(self, request: int) -> None:
        self._requests[request].force_complete()

    def _waiting(self) -> bool:
        return self._purgatory.parked > 0


class HandMadeRequests(RealRequests):
    """Futures, call_later and a dict by hand."""

    async def _replay(self, events: list[Event], keys: tuple[str, ...]) -> None:
        self._waiters: list[Waiter] = []
        self._by_hand = HandMade(asyncio.get_running_loop())
        await super()._replay(events, keys)

    def _park(self, keys: tuple[str, ...]) -> None:
        self._waiters.append(self._by_hand.wait(keys, TIMEOUT_MS / 1000))

    def _complete(self, request: int) -> None:
        self._by_hand.complete(self._waiters[request])

    def _waiting(self) -> bool:
        return not all(waiter.future.done() for waiter in self._waiters)


def _steps(plan: Plan) -> list[Step]:
    rounds = [
        Step("low", plan.requests),
        Step("high", plan.requests, without=frozenset({"driver alone"})),
    ]
    return rounds * plan.slow_rounds


KAFKA = Stage(
    {
        "purgatory, simulated": Contender(SimulatedRequests),
        "purgatory": Contender(OurRequests),
        "by hand": Contender(HandMadeRequests),
        "driver alone": Contender(RealRequests),
    },
    _steps,
)
