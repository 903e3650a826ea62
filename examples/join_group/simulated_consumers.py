"""Simulated group members in this process, for the demonstration and the tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

import httpx

from examples.join_group.client import Generation, GroupMember, MemberOptions, RequestFailed


@dataclass(frozen=True, slots=True)
class StableGeneration:
    """A generation in which every member has its partitions."""

    number: int
    protocol: str
    leader: str
    partitions: dict[str, tuple[int, ...]]
    """The partitions of each member, by name."""

    def covers(self, partitions: int) -> bool:
        """Return True iff every partition belongs to exactly one member."""
        assigned = [number for own in self.partitions.values() for number in own]
        return sorted(assigned) == list(range(partitions))


class SimulatedConsumers:
    """Starts and stops members, and waits until all are in one generation."""

    def __init__(self, url: str, options: MemberOptions) -> None:
        """Use the coordinator at `url`; `async with` stops all members at the end."""
        self._url = url
        self.options = options
        # Shared: reading the system's certificates is slow.
        self._ssl = ssl.create_default_context()
        # One client per member, as in reality: a shared pool of hundreds of connections is slow.
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._members: dict[str, GroupMember] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.generations: list[tuple[str, int]] = []
        """Pairs of member and generation, in the order in which members got their partitions."""

    async def __aenter__(self) -> Self:
        """Start without members."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop all members."""
        await self.kill(*self._tasks)

    def start(self, *names: str) -> None:
        """Start members."""
        for name in names:
            http = httpx.AsyncClient(base_url=self._url, verify=self._ssl)
            member = GroupMember(http, name, self.options, on_generation=self._on_generation)
            self._clients[name] = http
            self._members[name] = member
            task = self._tasks[name] = asyncio.create_task(member.run(), name=name)
            task.add_done_callback(self._on_end)

    async def kill(self, *names: str) -> None:
        """Stop members without notifying the coordinator, like a crash."""
        await self._cancel_tasks(*names)
        await asyncio.gather(*(self._clients.pop(name).aclose() for name in names))

    async def leave(self, *names: str) -> None:
        """Let members leave the group."""
        await self._cancel_tasks(*names)
        await asyncio.gather(*(self._members[name].leave() for name in names))
        await asyncio.gather(*(self._clients.pop(name).aclose() for name in names))

    async def settled(self, *, after: int = 0, timeout: float = 60) -> StableGeneration:
        """Return the first generation after `after` that contains every running member.

        Raises TimeoutError after `timeout` seconds, and the error of a member that has failed.
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

    def seconds_since_contact(self, name: str) -> float:
        """Return the maximum time in seconds since the coordinator heard from a member."""
        return asyncio.get_running_loop().time() - self._members[name].last_contact

    async def failure(self, name: str, *, timeout: float = 60) -> RequestFailed:
        """Return the error that ends a member; raise TimeoutError if it continues."""
        try:
            await asyncio.wait_for(self._tasks[name], timeout)
        except RequestFailed as failure:
            return failure
        raise AssertionError("a member runs until its request fails")

    async def _cancel_tasks(self, *names: str) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._changed.set()

    def _on_generation(self, member: GroupMember, generation: Generation) -> None:
        self.generations.append((member.name, generation.number))
        self._changed.set()

    def _settled(self, names: Collection[str]) -> StableGeneration | None:
        found = {
            name: generation
            for name in names
            if (generation := self._members[name].generation) is not None
        }
        if not found or len(found) < len(names) or _differ(found.values()):
            return None
        first = next(iter(found.values()))
        leaders = [name for name, generation in found.items() if generation.is_leader]
        return StableGeneration(
            number=first.number,
            protocol=first.protocol,
            leader=", ".join(leaders),
            partitions={name: generation.partitions for name, generation in found.items()},
        )


def _differ(generations: Iterable[Generation]) -> bool:
    return len({generation.number for generation in generations}) > 1
