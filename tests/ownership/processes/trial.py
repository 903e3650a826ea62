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

import httpx

from examples.join_group.client import Generation, Members
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
    "LEASE_MS": str(round(LEASE_S * 1000)),
    "MIN_SESSION_TIMEOUT_MS": "2000",
    "INITIAL_REBALANCE_DELAY_MS": "500",
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


class _Members(Members):
    """Members that write down what they are told."""

    ledger: GenerationLedger
    epoch = 0
    latest = 0

    def on_generation(self, name: str, generation: Generation) -> None:
        self.ledger.hand_out(GROUP, generation.number, generation.epoch)
        self.ledger.receive(GROUP, name, generation.number)
        self.epoch = max(self.epoch, generation.epoch)
        self.latest = max(self.latest, generation.number)
        super().on_generation(name, generation)


class Trial:
    """Three workers, and five members of one group."""

    def __init__(self, server: ValkeyServer, links: list[Link], folder: Path) -> None:
        self.report = Report()
        self._server = server
        self._links = links
        self._workers = [WorkerProcess(folder, link.port, _SETTINGS) for link in links]
        self._names = [f"m{number}" for number in range(5)]
        self._crashed = 0
        self._http = httpx.AsyncClient(timeout=LEASE_S)
        self._members = _Members(
            self._http,
            group_id=GROUP,
            workers=[worker.url for worker in self._workers],
            session_timeout=SESSION_S,
            rebalance_timeout=30.0,
            heartbeat_interval=0.5,
        )
        self._members.ledger = self.report.ledger

    async def run(self, faults: list[str]) -> Report:
        """Do one fault after another."""
        for worker in self._workers:
            worker.start()
        try:
            async with self._http:
                self._members.start(*self._names)
                await self._settled()
                for fault in faults:
                    await self._do(fault)
                await self._members.stop(*self._names)
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
            await self._members.stop(self._names.pop(0))
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
        await self._settled()

    async def _until_rejoined(self, epoch: int) -> None:
        settled = await self._settled(after=self._members.latest)
        while self._members.epoch <= epoch:
            # A rebalance had just ended under the old owner.
            settled = await self._settled(after=self._members.latest)
        numbers = sorted(number for each in settled.values() for number in each.partitions)
        if numbers != list(range(12)):
            self.report.ledger.faults.append(f"partitions in {settled}")

    async def _settled(self, after: int = 0) -> dict[str, Generation]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._members.settled(after=after)

    async def _owner(self) -> WorkerProcess:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for worker in self._workers:
                    if await self._epoch(worker) == self._members.epoch:
                        return worker
                await asyncio.sleep(0.05)

    async def _epoch(self, worker: WorkerProcess) -> int | None:
        """Return the epoch of a worker, None if it does not own the group."""
        try:
            described = await self._http.get(f"{worker.url}/groups/{GROUP}")
        except httpx.TransportError:
            return None
        epoch: int | None = described.json().get("epoch") if described.is_success else None
        return epoch


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
