"""The laws of a purgatory that is closed and opened again, on loops and threads that alternate.

Whatever is opened, waited for, fired, deferred and closed in which order: every wait ends once;
a client that goes on from its last cursor gets every value once and in order, also those that
fired while it was away; a job runs once; and a loop is refused while another one is in use.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import Outcome, Purgatory, Status, WrongThreadError
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.testing import AutojumpEventLoop, MockClock

KEYS = "ab"
CLIENTS = 3


class Place:
    """An event loop in a thread of its own."""

    def __init__(self, clock: MockClock) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._loop = self._threads.submit(AutojumpEventLoop, clock).result()

    def run(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `call`, once every task has had time to go on."""

        async def main() -> Any:
            result = await call()
            for _ in range(10):
                await asyncio.sleep(0)
            return result

        return self._threads.submit(lambda: self._loop.run_until_complete(main())).result()

    def end(self) -> None:
        """End the loop, on which no task may be left, and the thread."""
        assert not asyncio.all_tasks(self._loop)
        self._threads.submit(self._loop.close).result()
        self._threads.shutdown()


class Client:
    """Waits for one key, and goes on from the cursor of its last outcome."""

    def __init__(self, purgatory: Purgatory, key: str) -> None:
        self.purgatory = purgatory
        self.key = key
        self.cursor = purgatory.signals.cursor(purgatory.signals.head())
        self.received: list[Any] = []
        self.expected: list[Any] = []
        self.task: asyncio.Task[Status] | None = None
        self.outcomes = 0

    async def wait(self, timeout: float) -> Status:
        """Wait once; take a value that fired."""
        outcome: Outcome = await self.purgatory.park(self.key, timeout=timeout, cursor=self.cursor)
        self.outcomes += 1
        self.cursor = outcome.cursor
        if outcome.status is Status.FIRED:
            assert outcome.key == self.key
            self.received.append(outcome.value)
        return outcome.status


class ReopenMachine(RuleBasedStateMachine):
    """One purgatory, and two places where it may be open."""

    @initialize()
    def start(self) -> None:
        self.clock = MockClock()
        self.places = [Place(self.clock), Place(self.clock)]
        self.purgatory = Purgatory(clock=self.clock, jobs=MemoryJobStore(now_ms=self.clock.wall_ms))
        self.purgatory.handler("note")(self.note)
        self.where: Place | None = None
        self.opened = 0
        self.fires = 0
        self.waits = 0
        self.deferred: list[int] = []
        self.ran: list[int] = []
        self.clients = [Client(self.purgatory, KEYS[n % len(KEYS)]) for n in range(CLIENTS)]

    async def note(self, job: JobContext, number: int) -> None:
        self.ran.append(number)

    def do(self, call: Callable[[], Awaitable[Any]]) -> Any:
        assert self.where is not None
        return self.where.run(call)

    @rule(number=st.integers(0, 1))
    def open(self, number: int) -> None:
        """Anywhere while it is closed, else only where it is open."""
        place = self.places[number]
        if self.where not in (None, place):
            try:
                place.run(self.purgatory.__aenter__)
            except WrongThreadError:
                return
            raise AssertionError("a second loop is refused")
        place.run(self.purgatory.__aenter__)
        self.where = place
        self.opened += 1

    @precondition(lambda self: self.where is not None)
    @rule(number=st.integers(0, CLIENTS - 1), timeout=st.sampled_from([0, 0.005, 60]))
    def wait(self, number: int, timeout: float) -> None:
        """A client begins to wait, unless it does."""
        client = self.clients[number]
        if client.task is not None and not client.task.done():
            return

        async def begin() -> None:
            client.task = asyncio.ensure_future(client.wait(timeout))

        self.waits += 1
        self.do(begin)

    @precondition(lambda self: self.where is not None)
    @rule(key=st.sampled_from(KEYS))
    def fire(self, key: str) -> None:
        """Every client of the key is to get it, now or later."""
        self.fires += 1
        for client in self.clients:
            if client.key == key:
                client.expected.append(self.fires)
        self.do(lambda: self.purgatory.fire(key, self.fires))

    @precondition(lambda self: self.where is not None)
    @rule(delay=st.sampled_from([0, 0.01, 30]))
    def defer(self, delay: float) -> None:
        """It runs some time, wherever that is."""
        self.deferred.append(len(self.deferred))
        self.do(lambda: self.purgatory.defer("note", self.deferred[-1], delay=delay))

    @precondition(lambda self: self.where is not None)
    @rule(seconds=st.sampled_from([0.001, 0.01, 5]))
    def pass_time(self, seconds: float) -> None:
        """Waits and jobs become due."""
        self.do(lambda: asyncio.sleep(seconds))

    @precondition(lambda self: self.where is None)
    @rule(ms=st.integers(1, 100_000))
    def stay_closed(self, ms: int) -> None:
        """Time passes while nobody looks."""
        self.clock.advance(ms)

    @precondition(lambda self: self.where is not None)
    @rule(is_drained=st.booleans())
    def close(self, is_drained: bool) -> None:
        """The last closing ends every wait."""
        if is_drained and self.opened == 1:
            self.do(self.purgatory.drain)
        self.do(self.purgatory.close)
        self.opened -= 1
        if not self.opened:
            self.where = None

    @invariant()
    def it_waits_only_where_it_is_open(self) -> None:
        if not hasattr(self, "purgatory"):
            return
        waiting = sum(c.task is not None and not c.task.done() for c in self.clients)
        assert self.purgatory.is_open == (self.where is not None)
        assert self.purgatory.parked == waiting
        assert self.where is not None or waiting == len(self.purgatory.watched_keys()) == 0
        assert sum(client.outcomes for client in self.clients) + waiting == self.waits

    @invariant()
    def nothing_comes_twice_or_out_of_order(self) -> None:
        if hasattr(self, "purgatory"):
            for client in self.clients:
                assert client.received == client.expected[: len(client.received)]
            assert len(self.ran) == len(set(self.ran))

    def teardown(self) -> None:
        """Open for the last time: what is left comes, each once."""
        if not hasattr(self, "purgatory"):
            return
        while self.where is not None:
            self.close(is_drained=False)
        self.it_waits_only_where_it_is_open()

        async def read_on() -> None:
            async with self.purgatory:
                for client in self.clients:
                    while await client.wait(0) is Status.FIRED:
                        pass
                await asyncio.sleep(60)

        try:
            self.places[0].run(read_on)
            for client in self.clients:
                assert client.received == client.expected
            assert sorted(self.ran) == self.deferred
            counts = self.purgatory.statistics()
            assert (counts.parked, counts.timers, counts.jobs and counts.jobs.held) == (0, 0, 0)
        finally:
            for place in self.places:
                place.end()


TestReopenLaws = ReopenMachine.TestCase
# Each step goes to another thread and back.
TestReopenLaws.settings = settings(max_examples=max(1, settings().max_examples // 3))
