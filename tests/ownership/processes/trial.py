"""Owners that are killed, suspended, restarted or cut off, while members share a group."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from examples.join_group.client import Generation, GroupMember, MemberOptions
from examples.join_group.simulated_consumers import SimulatedConsumers
from tests.chaos.signals.proxy import Proxy
from tests.ownership.generation_ledger import GenerationLedger
from tests.ownership.processes.worker_process import WorkerProcess
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

FAULTS = ("kill", "stop", "stop while joining", "restart", "cut", "stall", "Valkey restart")
GROUP = "orders"
LEASE_S = 1.0
SESSION_S = 6.0
_SETTINGS = {
    "LEASE": str(LEASE_S),
    "MIN_SESSION_TIMEOUT": "2.0",
    "INITIAL_REBALANCE_DELAY": "0.5",
}


@dataclass(slots=True)
class Report:
    """What was done and seen."""

    ledger: GenerationLedger = field(default_factory=GenerationLedger)
    faults: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds from each kind of fault until all members had joined again."""


class Link(Proxy):
    """A worker's way to Valkey: cut, it refuses; stalled, it swallows what is sent."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._target = port

    def refuse(self) -> None:
        self.target = "/nowhere"
        self.cut()

    def swallow(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        self.target = self._target
        self._flows.set()


class _Members(SimulatedConsumers):
    """Members that write down what they are told."""

    ledger: GenerationLedger
    epoch = 0

    def _on_generation(self, member: GroupMember, generation: Generation) -> None:
        self.ledger.hand_out(GROUP, generation.number, generation.epoch)
        self.ledger.receive(GROUP, member.name, generation.number)
        self.epoch = max(self.epoch, generation.epoch)
        super()._on_generation(member, generation)


class Trial:
    """Three workers, and five members of one group."""

    def __init__(self, server: ValkeyServer, links: list[Link], folder: Path) -> None:
        self.report = Report()
        self._server = server
        self._links = links
        self._workers = [WorkerProcess(folder, link.port, _SETTINGS) for link in links]
        self._names = [f"m{number}" for number in range(5)]
        self._crashed = 0
        self._http = httpx.AsyncClient(timeout=LEASE_S, follow_redirects=True)
        options = MemberOptions(
            group_id=GROUP,
            partitions=12,
            session_timeout=SESSION_S,
            rebalance_timeout=30.0,
            heartbeat_interval=0.5,
            workers=[worker.url for worker in self._workers],
        )
        self._members = _Members("", options)
        self._members.ledger = self.report.ledger

    async def run(self, faults: list[str]) -> Report:
        """Do one fault after another."""
        for worker in self._workers:
            worker.start()
        try:
            async with self._members, self._http:
                self._members.start(*self._names)
                await self._members.settled(timeout=PATIENCE_S)
                for fault in faults:
                    await self._do(fault)
        finally:
            for worker in self._workers:
                worker.close()
        self.report.ledger.check_order()
        return self.report

    def logs(self) -> str:
        """Return what the workers logged."""
        return "".join(worker.log.read_text() for worker in self._workers)

    async def _do(self, fault: str) -> None:
        owner = await self._owner()
        epoch, loop = self._members.epoch, asyncio.get_running_loop()
        link = self._links[self._workers.index(owner)]
        if fault == "stop while joining":
            self._crashed += 1
            await self._members.kill(self._names.pop(0))
            self._names.append(f"n{self._crashed}")
            self._members.start(self._names[-1])
            await asyncio.sleep(0.5)
        began = loop.time()
        match fault:
            case "kill":
                owner.send(signal.SIGKILL)
            case "stop" | "stop while joining":
                owner.send(signal.SIGSTOP)
            case "restart":
                owner.send(signal.SIGTERM)
            case "cut":
                link.refuse()
            case "stall":
                link.swallow()
            case "Valkey restart":
                await asyncio.to_thread(self._server.kill)
                await asyncio.sleep(1.5 * LEASE_S)
                await asyncio.to_thread(self._server.start)
        await self._until_rejoined(epoch)
        took = loop.time() - began
        self.report.faults[fault] += 1
        self.report.slowest[fault] = max(took, self.report.slowest.get(fault, 0.0))
        match fault:
            case "kill" | "restart":
                await asyncio.to_thread(owner.wait)
                owner.start()
            case "stop" | "stop while joining":
                # It finds its lease lost, and must not answer as the owner any more.
                owner.send(signal.SIGCONT)
            case "cut" | "stall":
                link.mend()
        await asyncio.sleep(LEASE_S)
        await self._members.settled(timeout=PATIENCE_S)

    async def _until_rejoined(self, epoch: int) -> None:
        after = max(number for _, number in self._members.generations)
        settled = await self._members.settled(after=after, timeout=PATIENCE_S)
        while self._members.epoch <= epoch:
            # A rebalance had just ended under the old owner.
            settled = await self._members.settled(after=settled.number, timeout=PATIENCE_S)
        if not settled.covers(12):
            self.report.ledger.faults.append(f"partitions in {settled}")

    async def _owner(self) -> WorkerProcess:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for worker in self._workers:
                    described = await self._describe(worker)
                    if described.get("epoch") == self._members.epoch:
                        by_url = {worker.url: worker for worker in self._workers}
                        return by_url[described["coordinator"]]
                await asyncio.sleep(0.05)

    async def _describe(self, worker: WorkerProcess) -> dict[str, Any]:
        try:
            described: dict[str, Any] = (
                await self._http.get(f"{worker.url}/groups/{GROUP}")
            ).json()
        except httpx.TransportError:
            return {}
        return described


@asynccontextmanager
async def trial(folder: Path) -> AsyncIterator[Trial]:
    """A trial on a Valkey of its own."""
    with ValkeyServer(folder, is_on_port=True, appendfsync="always") as server:
        port = int(server.url.rpartition(":")[2])
        async with AsyncExitStack() as stack:
            links = [await stack.enter_async_context(Link(port)) for _ in range(3)]
            yield Trial(server, links, folder)


def shuffled(count: int, seed: int) -> list[str]:
    """Return `count` faults, each kind about as often as any other."""
    faults = [FAULTS[number % len(FAULTS)] for number in range(count)]
    random.Random(seed).shuffle(faults)
    return faults
