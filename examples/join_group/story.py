"""The demonstration: a group through the days of its life, over HTTP."""

from __future__ import annotations

import asyncio
from typing import Final

from examples.join_group.client import MemberOptions
from examples.join_group.crew import Crew, Settled
from examples.join_group.server import CoordinatorServer
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.table import Table

FIRST: Final = ("ada", "bob", "cho", "dee", "eve")

SETTINGS: Final = CoordinatorSettings(initial_rebalance_delay=0.8, min_session_timeout=1.0)
OPTIONS: Final = MemberOptions(
    group_id="orders",
    partitions=12,
    session_timeout=3.0,
    rebalance_timeout=30.0,
    heartbeat_interval=0.4,
)


class Story:
    """Tells what happens, and keeps what was expected of it and did not."""

    def __init__(self, server: CoordinatorServer, crew: Crew) -> None:
        """Tell of `crew`, whose coordinator is `server`."""
        self._server = server
        self._crew = crew
        self._options = crew.options
        self._table = Table((*FIRST, "fay"))
        self.expectations = 0
        self.failures: list[str] = []

    async def tell(self) -> None:
        """Live through it, which takes some seconds; TimeoutError where the group never settles."""
        self._table.header()
        generation = await self._five_join()
        generation = await self._one_leaves(generation)
        generation = await self._one_dies(generation)
        await self._one_is_late(generation)
        await self._server_stops()
        self._table.rule()

    async def _five_join(self) -> Settled:
        for name in FIRST:
            self._crew.start(name)
            await asyncio.sleep(0.1)
        self._table.row("five members join, one by one")
        settled = await self._settled("all are answered together", after=0)
        self._expect(settled.number == 1, "five members that start together are one generation")
        return settled

    async def _one_leaves(self, before: Settled) -> Settled:
        await asyncio.sleep(0.5)
        await self._crew.leave("bob")
        self._table.row("bob leaves")
        return await self._settled("the others learn it by heartbeat", after=before.number)

    async def _one_dies(self, before: Settled) -> Settled:
        await asyncio.sleep(0.5)
        await self._crew.kill("cho")
        self._table.row("cho dies without a word")
        over = f"cho's session of {self._options.session_timeout:g} s is over"
        settled = await self._settled(over, after=before.number)
        self._expect(
            self._crew.silence("cho") >= self._options.session_timeout,
            "a session is over after its timeout, not before",
        )
        return settled

    async def _one_is_late(self, before: Settled) -> Settled:
        await asyncio.sleep(0.5)
        self._crew.start("fay")
        self._table.row("fay comes late, and her join parks")
        return await self._settled("everyone has joined again", after=before.number)

    async def _server_stops(self) -> None:
        await asyncio.sleep(0.5)
        await self._crew.kill("dee")
        self._crew.start("bob")
        self._table.row("dee dies, bob is back: his join parks")
        await asyncio.sleep(self._options.heartbeat_interval * 2)
        self._server.drain()
        refusal = await self._crew.refusal("bob")
        self._table.row(f"the server stops: {refusal.status}, Retry-After {refusal.retry_after}")
        self._expect(
            refusal.kind == "coordinator-draining" and refusal.retry_after is not None,
            "a parked join is answered when the server stops, with Retry-After",
        )

    async def _settled(self, event: str, after: int) -> Settled:
        settled = await self._crew.settled(after=after)
        self._table.row(event, settled)
        self._expect(settled.number == after + 1, f"one rebalance leads to generation {after + 1}")
        self._expect(
            settled.covers(self._options.partitions),
            f"generation {settled.number} gives every partition to exactly one member",
        )
        return settled

    def _expect(self, is_so: bool, sentence: str) -> None:
        self.expectations += 1
        if not is_so:
            self.failures.append(sentence)


async def tell(server: CoordinatorServer, options: MemberOptions = OPTIONS) -> Story:
    """Tell the story to the terminal and return it."""
    async with Crew(server.url, options) as crew:
        story = Story(server, crew)
        await story.tell()
    return story
