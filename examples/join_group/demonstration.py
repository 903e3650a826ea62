"""The demonstration: a group forms, shrinks, grows and drains, over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from examples.join_group.client import MemberOptions
from examples.join_group.server import CoordinatorServer
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.simulated_consumers import SimulatedConsumers, StableGeneration

EVENT_WIDTH: Final = 37
CELL_WIDTH: Final = 7

FIRST: Final = ("ada", "bob", "cho", "dee", "eve")

SETTINGS: Final = CoordinatorSettings(initial_rebalance_delay=0.8, min_session_timeout=1.0)
OPTIONS: Final = MemberOptions(
    group_id="orders",
    partitions=12,
    session_timeout=3.0,
    rebalance_timeout=30.0,
    heartbeat_interval=0.4,
)


class Demonstration:
    """Runs scenes, and records the expectations that are not met."""

    def __init__(self, server: CoordinatorServer, consumers: SimulatedConsumers) -> None:
        """Run with `consumers` and their coordinator `server`."""
        self._server = server
        self._consumers = consumers
        self._options = consumers.options
        self._table = Table((*FIRST, "fay"))
        self.expectations = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Run all scenes, in some seconds; raise TimeoutError if the group never settles."""
        self._table.header()
        generation = await self._five_join()
        generation = await self._one_leaves(generation)
        generation = await self._one_crashes(generation)
        await self._one_is_late(generation)
        await self._server_stops()
        self._table.rule()

    async def _five_join(self) -> StableGeneration:
        for name in FIRST:
            self._consumers.start(name)
            await asyncio.sleep(0.1)
        self._table.row("five members join, one by one")
        settled = await self._settled("all get a response together", after=0)
        self._expect(settled.number == 1, "five members that start together are one generation")
        return settled

    async def _one_leaves(self, before: StableGeneration) -> StableGeneration:
        await asyncio.sleep(0.5)
        await self._consumers.leave("bob")
        self._table.row("bob leaves")
        return await self._settled("the others learn this by heartbeat", after=before.number)

    async def _one_crashes(self, before: StableGeneration) -> StableGeneration:
        await asyncio.sleep(0.5)
        await self._consumers.kill("cho")
        self._table.row("cho crashes")
        over = f"cho's session of {self._options.session_timeout:g} s expires"
        settled = await self._settled(over, after=before.number)
        self._expect(
            self._consumers.seconds_since_contact("cho") >= self._options.session_timeout,
            "a session expires after its timeout, not before",
        )
        return settled

    async def _one_is_late(self, before: StableGeneration) -> StableGeneration:
        await asyncio.sleep(0.5)
        self._consumers.start("fay")
        self._table.row("fay joins late, and her join parks")
        return await self._settled("all members have joined again", after=before.number)

    async def _server_stops(self) -> None:
        await asyncio.sleep(0.5)
        await self._consumers.kill("dee")
        self._consumers.start("bob")
        self._table.row("dee crashes, bob is back: his join parks")
        await asyncio.sleep(self._options.heartbeat_interval * 2)
        self._server.drain()
        failure = await self._consumers.failure("bob")
        self._table.row(f"the server stops: {failure.status}, Retry-After {failure.retry_after}")
        self._expect(
            failure.kind == "coordinator-draining" and failure.retry_after is not None,
            "a parked join gets a response with Retry-After when the server stops",
        )

    async def _settled(self, event: str, after: int) -> StableGeneration:
        settled = await self._consumers.settled(after=after)
        self._table.row(event, settled)
        self._expect(settled.number == after + 1, f"one rebalance leads to generation {after + 1}")
        self._expect(
            settled.covers(self._options.partitions),
            f"generation {settled.number} gives every partition to exactly one member",
        )
        return settled

    def _expect(self, is_met: bool, expectation: str) -> None:
        self.expectations += 1
        if not is_met:
            self.failures.append(expectation)


async def run_demonstration(
    server: CoordinatorServer, options: MemberOptions = OPTIONS
) -> Demonstration:
    """Run the demonstration on the terminal and return it."""
    async with SimulatedConsumers(server.url, options) as consumers:
        demonstration = Demonstration(server, consumers)
        await demonstration.run()
    return demonstration


class Table:
    """Prints rows with the seconds since the header."""

    def __init__(self, names: Sequence[str]) -> None:
        """Create a table with a column for each of `names`."""
        self._names = names
        self._started = 0.0
        # A terminal without box-drawing characters gets question marks instead of an error.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")

    def header(self) -> None:
        """Print the header and start the clock."""
        self._started = asyncio.get_running_loop().time()
        cells = "".join(name.rjust(CELL_WIDTH) for name in self._names)
        print(f"  time  {'event':<{EVENT_WIDTH}} gen  members{cells}")
        self.rule()

    def row(self, event: str, settled: StableGeneration | None = None) -> None:
        """Print an event and the partitions of all members."""
        seconds = asyncio.get_running_loop().time() - self._started
        start = f"{seconds:5.1f}s  {event:<{EVENT_WIDTH}}"
        print(f"{start} {self._cells(settled)}".rstrip(), flush=True)

    def rule(self) -> None:
        """Print a line."""
        print("─" * (EVENT_WIDTH + 21 + CELL_WIDTH * len(self._names)))

    def _cells(self, settled: StableGeneration | None) -> str:
        if settled is None:
            return ""
        cells = "".join(self._cell(name, settled).rjust(CELL_WIDTH) for name in self._names)
        return f"{settled.number:>3}  {len(settled.partitions):>7}{cells}"

    def _cell(self, name: str, settled: StableGeneration) -> str:
        if name not in settled.partitions:
            return "·"
        return ranges(settled.partitions[name]) + ("*" if name == settled.leader else "")


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges: "0-2 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
