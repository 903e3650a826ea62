"""Races on a new store: of one process, or of two."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from purgatory import Limits, Purgatory
from purgatory.jobs import JobStore, MemoryJobStore
from purgatory.jobs.sql import migrate
from purgatory.signals.redis import RedisSignals
from tests.chaos.machines import Machine, PostgresMachine, SqliteMachine, ValkeyMachine
from tests.chaos.races.peer import LINE_BYTES, RemotePeer, SamePeer
from tests.chaos.races.planted import planted
from tests.chaos.races.racer import Racer, Races
from tests.chaos.service import make_store
from tests.valkey_server import ValkeyServer

MACHINES: dict[str, Any] = {
    "sqlite": SqliteMachine,
    "postgresql": PostgresMachine,
    "valkey": ValkeyMachine,
}
KINDS = ["memory", *sorted(MACHINES)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one racer races."""

    name: str
    pairs: int
    seed: int = 1
    has_cursor: bool = True
    is_planted: bool = False

    def halves(self) -> tuple[Plan, Plan]:
        """Return the plans of two racers."""
        half = self.pairs // 2
        return replace(self, pairs=half), replace(self, name="b", pairs=self.pairs - half)

    def racer(
        self, purgatory: Purgatory, store: JobStore, say: Callable[[], object] = lambda: None
    ) -> Racer:
        """Return the racer."""
        return Racer(
            self.name, purgatory, store, seed=self.seed, has_cursor=self.has_cursor, say=say
        )


async def race_in_memory(plan: Plan, say: Callable[[Races], object]) -> Races:
    """Race with one purgatory, as a store in memory has no other process."""
    store = MemoryJobStore()
    async with _purgatory(store, None) as purgatory:
        racer = plan.racer(purgatory, store, lambda: say(racer.races))
        with planted if plan.is_planted else nullcontext():
            await racer.run(plan.pairs, SamePeer(racer.fire))
    return racer.races


async def race_in_one_process(kind: str, folder: Path, plans: tuple[Plan, Plan]) -> Races:
    """Race with two purgatories in this process, each with connections of its own."""
    with servers(kind, folder) as (url, signals_url):
        if kind != "valkey":
            await migrate(url)
        async with AsyncExitStack() as stack:
            racers = [
                plan.racer(*await stack.enter_async_context(opened(url, signals_url)))
                for plan in plans
            ]
            if plans[0].is_planted:
                stack.enter_context(planted)
            async with asyncio.TaskGroup() as group:
                for plan, racer, other in zip(plans, racers, racers[::-1], strict=True):
                    group.create_task(racer.run(plan.pairs, SamePeer(other.fire)))
    return racers[0].races + racers[1].races


async def race_in_two_processes(
    kind: str, folder: Path, plans: tuple[Plan, Plan], say: Callable[[Races], object]
) -> Races:
    """Race against a process that is started for it."""
    with servers(kind, folder) as (url, signals_url):
        if kind != "valkey":
            await migrate(url)
        arguments = [url, signals_url, folder / "peer", *asdict(plans[1]).values()]
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()
        server = await asyncio.start_unix_server(
            lambda *streams: connected.set_result(streams), folder / "peer", limit=LINE_BYTES
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos.races.other", *map(str, arguments)
        )
        ended = asyncio.ensure_future(process.wait())
        try:
            async with server:
                first: list[asyncio.Future[Any]] = [connected, ended]
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                assert connected.done(), f"the other process ended: {ended.result()}"
                return await race_with(plans[0], url, signals_url, connected.result(), say)
        finally:
            if not ended.done():
                process.terminate()
            await ended


async def race_with(
    plan: Plan,
    url: str,
    signals_url: str,
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    say: Callable[[Races], object],
) -> Races:
    """Race against the process at the other end of a stream; return what came of both sides."""
    async with opened(url, signals_url) as (purgatory, store):

        def on_progress() -> None:
            peer.report(racer.races.as_json())
            say(both())

        def both() -> Races:
            return racer.races + Races.of_json(peer.races) if peer.races else racer.races

        racer = plan.racer(purgatory, store, on_progress)
        peer = RemotePeer(*streams, racer.fire)
        serving = asyncio.create_task(peer.run())
        with planted if plan.is_planted else nullcontext():
            racing = asyncio.create_task(racer.run(plan.pairs, peer))
            await asyncio.wait([serving, racing], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            await racing
            peer.report(racer.races.as_json(), is_end=True)
            # The other may still give orders.
            ending: list[asyncio.Future[Any]]
            ending = [serving, asyncio.ensure_future(peer.has_ended.wait())]
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        await peer.close()
        await serving
        return both()


@contextmanager
def servers(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Run the servers of a kind of store; yield its URL, and that of the signals."""
    with ExitStack() as stack:
        machine: Machine = MACHINES[kind](folder)
        machine.start()
        stack.callback(machine.close)
        (folder / "signals").mkdir()
        signals = stack.enter_context(ValkeyServer(folder / "signals"))
        yield machine.url, signals.url


@asynccontextmanager
async def opened(url: str, signals_url: str) -> AsyncIterator[tuple[Purgatory, JobStore]]:
    """Open a purgatory on the servers, as each process has one."""
    store = make_store(url)
    async with _purgatory(store, RedisSignals(signals_url)) as purgatory:
        yield purgatory, store


def _purgatory(store: JobStore, signals: RedisSignals | None) -> Purgatory:
    limits = Limits(max_signals=100_000)
    purgatory = Purgatory("races", jobs=store, signals=signals, limits=limits)
    purgatory.handled_elsewhere(["none"])
    return purgatory
