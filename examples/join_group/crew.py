"""Members that live in this process: for the demonstration and the tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

import httpx

from examples.join_group.client import Generation, GroupMember, GroupRefusal, MemberOptions


@dataclass(frozen=True, slots=True)
class Settled:
    """A generation in which every member has its partitions."""

    number: int
    protocol: str
    leader: str
    partitions: dict[str, tuple[int, ...]]
    """Each member's, by its name."""

    def covers(self, partitions: int) -> bool:
        """Return True iff every partition belongs to exactly one member."""
        given = [number for own in self.partitions.values() for number in own]
        return sorted(given) == list(range(partitions))


class Crew:
    """Starts members, ends them in one way or another, and waits until they agree."""

    def __init__(self, url: str, options: MemberOptions) -> None:
        """Let members join one group of the coordinator at `url`; `async with` ends them all."""
        self._url = url
        self.options = options
        # One for all: to read the certificates of the system takes longer than all else.
        self._ssl = ssl.create_default_context()
        # One client a member, as in life: a pool of hundreds is slow, and dies with its member.
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._members: dict[str, GroupMember] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.generations: list[tuple[str, int]] = []
        """Who was part of which generation, in the order in which they had their partitions."""

    async def __aenter__(self) -> Self:
        """Begin with nobody."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """End everyone."""
        await self.kill(*self._tasks)

    def start(self, *names: str) -> None:
        """Let members begin to live."""
        for name in names:
            http = httpx.AsyncClient(base_url=self._url, verify=self._ssl)
            member = GroupMember(http, name, self.options, on_generation=self._on_generation)
            self._clients[name] = http
            self._members[name] = member
            task = self._tasks[name] = asyncio.create_task(member.run(), name=name)
            task.add_done_callback(self._on_end)

    async def kill(self, *names: str) -> None:
        """Let members die without a word."""
        await self._end_lives(*names)
        await asyncio.gather(*(self._clients.pop(name).aclose() for name in names))

    async def leave(self, *names: str) -> None:
        """Let members leave, saying so."""
        await self._end_lives(*names)
        await asyncio.gather(*(self._members[name].leave() for name in names))
        await asyncio.gather(*(self._clients.pop(name).aclose() for name in names))

    async def settled(self, *, after: int = 0, timeout: float = 60) -> Settled:
        """Return the first generation beyond `after` in which every living member is.

        Raises TimeoutError after `timeout` seconds, and what ended a member that cannot go on.
        """
        async with asyncio.timeout(timeout):
            while True:
                self._changed.clear()
                settled = self._settled(self._tasks)
                if settled is not None and settled.number > after:
                    return settled
                await self._changed.wait()
                for task in self._tasks.values():
                    if task.done():
                        task.result()

    def silence(self, name: str) -> float:
        """Return for how many seconds the coordinator has not heard of a member, at the most."""
        return asyncio.get_running_loop().time() - self._members[name].spoke_at

    async def refusal(self, name: str, *, timeout: float = 60) -> GroupRefusal:
        """Return what ends a member that cannot go on; TimeoutError while it can."""
        try:
            await asyncio.wait_for(self._tasks[name], timeout)
        except GroupRefusal as refusal:
            return refusal
        raise AssertionError("a member lives until it is refused")

    async def _end_lives(self, *names: str) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._changed.set()

    def _on_generation(self, member: GroupMember, generation: Generation) -> None:
        self.generations.append((member.name, generation.number))
        self._changed.set()

    def _settled(self, names: Collection[str]) -> Settled | None:
        found = {
            name: generation
            for name in names
            if (generation := self._members[name].generation) is not None
        }
        if not found or len(found) < len(names) or _differ(found.values()):
            return None
        first = next(iter(found.values()))
        leaders = [name for name, generation in found.items() if generation.is_leader]
        return Settled(
            number=first.number,
            protocol=first.protocol,
            leader=", ".join(leaders),
            partitions={name: generation.partitions for name, generation in found.items()},
        )


def _differ(generations: Iterable[Generation]) -> bool:
    return len({generation.number for generation in generations}) > 1
