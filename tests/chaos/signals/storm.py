"""Clients that wait with cursors, and fires from everywhere, while everything is made to fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.signals.proxy import Proxy
from tests.chaos.storm import ROOT
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

FAULTS = ("kill worker", "kill server", "cut", "stall", "empty", "lose writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPlan:
    """How hard it blows: `faults` says how often each one happens."""

    clients: int
    keys: int
    faults: dict[str, int]
    seed: int
    workers: int = 4
    firing: int = 4
    pause_s: float = 0.4


class NoAnswerError(Exception):
    """The worker was killed, or was not there."""


class Worker:
    """One worker process, and the connection to it."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self._url, self._path = url, folder / f"w{number}"
        self._log = (folder / f"worker-{number}.log").open("ab")
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count()

    async def start(self) -> None:
        """Start it, and return once it accepts requests."""
        self._path.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.signals.worker", self._url, str(self._path)),
            cwd=ROOT,
            stdout=self._log,
            stderr=self._log,
        )
        async with asyncio.timeout(PATIENCE_S):
            while self._writer is None:
                try:
                    reader, self._writer = await asyncio.open_unix_connection(str(self._path))
                except OSError:
                    await asyncio.sleep(0.05)
        self._reading = asyncio.create_task(self._read(reader))

    async def kill(self) -> None:
        """End it without warning."""
        if self._process is not None:
            process, writer = self._process, self._writer
            # First: what is asked from here on would wait for ever.
            self._writer = self._process = None
            process.kill()
            await process.wait()
            assert writer is not None and self._reading is not None
            writer.transport.abort()
            await self._reading

    async def ask(self, what: str, **request: Any) -> dict[str, Any]:
        """Return the reply; raise NoAnswerError."""
        if self._writer is None:
            raise NoAnswerError
        number = next(self._ids)
        self._replies[number] = future = asyncio.get_running_loop().create_future()
        text = json.dumps({"what": what, "id": number, **request})
        self._writer.write(text.encode() + b"\n")
        reply: dict[str, Any] = await future
        return reply

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                reply = json.loads(line)
                self._replies.pop(reply["id"]).set_result(reply)
        except OSError:
            pass
        replies, self._replies = self._replies, {}
        for future in replies.values():
            future.set_exception(NoAnswerError())


@dataclass(slots=True)
class Client:
    """What one client was told, in order."""

    key: str
    cursor: str | None = None
    # (turn, value): a value of None is a cursor that has expired.
    told: list[tuple[int, int | None]] = field(default_factory=list)
    begun: int = 0


class SignalStorm:
    """Runs a plan; `faults` has what was broken. Turns count everything that happens."""

    def __init__(self, plan: SignalPlan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._random = random.Random(plan.seed)
        self._server = ValkeyServer(folder, appendfsync="always")
        self._turns = itertools.count()
        self._values = itertools.count()
        self._is_firing = True
        self._is_over = False
        keys = [f"key:{number}" for number in range(plan.keys)]
        self.clients = [Client(keys[number % plan.keys]) for number in range(plan.clients)]
        self._keys = keys
        # {key: (turns when it was asked for and acknowledged, value)}
        self.fired: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()

    async def blow(self) -> list[str]:
        """Go through with it, and return what was broken."""
        self._server.start()
        unix = self._server.url.removeprefix("unix://")
        try:
            async with Proxy(unix) as self._proxy:
                url = f"redis://127.0.0.1:{self._proxy.port}"
                self._workers = [
                    Worker(url, self._folder, number) for number in range(self._plan.workers)
                ]
                try:
                    await asyncio.gather(*(worker.start() for worker in self._workers))
                    return await self._run()
                finally:
                    for worker in self._workers:
                        await worker.kill()
                        worker.close()
        finally:
            self._server.close()

    async def _run(self) -> list[str]:
        await self._settled()
        waiting = [asyncio.create_task(self._wait(client)) for client in self.clients]
        firing = [asyncio.create_task(self._fire()) for _ in range(self._plan.firing)]
        faults = [name for name, count in self._plan.faults.items() for _ in range(count)]
        self._random.shuffle(faults)
        for fault in faults:
            await asyncio.sleep(self._plan.pause_s)
            await self._do(fault)
            self.counts[fault] += 1
        await asyncio.sleep(self._plan.pause_s)
        self._is_firing = False
        await asyncio.gather(*firing)
        await self._settled()
        self._is_over = True
        await asyncio.gather(*waiting)
        statistics = [await worker.ask("statistics") for worker in self._workers]
        left = [f"waits are left: {each}" for each in statistics if each["parked"]]
        kept = [each["signals"] for each in statistics]
        self.counts["kept signals, at most"] = max(kept)
        return [*left, *itertools.chain.from_iterable(map(self._judge, self.clients))]

    async def _do(self, fault: str) -> None:
        worker = self._random.choice(self._workers)
        match fault:
            case "kill worker":
                await worker.kill()
                await worker.start()
            case "kill server":
                self._server.kill()
                await asyncio.sleep(self._random.uniform(0, 0.3))
                await asyncio.to_thread(self._server.start)
            case "cut":
                self._proxy.cut()
            case "stall":
                await self._proxy.stall(self._random.uniform(0.1, 2.5))
            case "empty":
                with self._server.client() as client:
                    client.flushall()
            case "lose writes":
                await self._settled()
                await self._lose_writes()
        if fault != "cut":
            # What only a killed worker knew to be lost, nobody could say.
            await self._settled()

    async def _lose_writes(self) -> None:
        """As after a failover to a replica that was behind."""
        saved, live = self._folder / "saved", self._folder / "appendonlydir"
        self._server.kill()
        shutil.copytree(live, saved)
        await asyncio.to_thread(self._server.start)
        await self._settled()
        await asyncio.sleep(self._plan.pause_s)
        self._server.kill()
        shutil.rmtree(live)
        saved.rename(live)
        await asyncio.to_thread(self._server.start)

    async def _settled(self) -> None:
        """Return once each worker can fire: its connections are those of now."""
        async with asyncio.timeout(PATIENCE_S):
            for worker in self._workers:
                number = 0
                while number < 3:
                    reply = await worker.ask("fire", key=f"settled:{number}", value=None)
                    number = 0 if "error" in reply else number + 1
                    await asyncio.sleep(0.02)
                while (await worker.ask("statistics"))["missing"]:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            # Each reads the log once a second, and reports what it knows to be lost.
            await asyncio.sleep(1.5)

    async def _fire(self) -> None:
        while self._is_firing:
            key, value = self._random.choice(self._keys), next(self._values)
            asked = next(self._turns)
            try:
                reply = await self._random.choice(self._workers).ask("fire", key=key, value=value)
            except NoAnswerError:
                reply = {}
            if "seq" in reply:
                self.counts["acknowledged"] += 1
                self.fired[key].append((asked, next(self._turns), value))
            else:
                self.counts["refused"] += 1
            await asyncio.sleep(0.005)

    async def _wait(self, client: Client) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over
            try:
                reply = await self._ask(client, 0.0 if is_last else 1.0)
            except NoAnswerError:
                await asyncio.sleep(0.02)
                continue
            if "error" in reply:
                is_last = False
                await asyncio.sleep(0.05)
            elif "expired" in reply:
                client.told.append((next(self._turns), None))
                client.cursor = reply["head"]
                self.counts["expired"] += 1
                is_last = False
            elif client.cursor is None:
                client.cursor, client.begun = reply["cursor"], next(self._turns)
            else:
                client.cursor = reply["cursor"]
                if reply["status"] == "fired":
                    client.told.append((next(self._turns), reply["value"]))
                    self.counts["seen"] += 1
                    is_last = False

    async def _ask(self, client: Client, timeout: float) -> dict[str, Any]:
        worker = self._random.choice(self._workers)
        if client.cursor is None:
            return await worker.ask("begin", key=client.key)
        return await worker.ask("park", key=client.key, cursor=client.cursor, timeout=timeout)

    def _judge(self, client: Client) -> list[str]:
        seen = {value for _, value in client.told}
        expired = max((turn for turn, value in client.told if value is None), default=-1)
        name = f"client of {client.key}"
        found = [
            f"{name}: {value} was acknowledged, and neither seen nor said to be lost"
            for asked, _, value in self.fired[client.key]
            if asked > max(client.begun, expired) and value not in seen
        ]
        times = {value: (asked, done) for asked, done, value in self.fired[client.key]}
        # A cursor that has expired ends a part: the next may begin in a worker that is behind.
        part: list[int] = []
        for _, value in client.told:
            if value is None:
                part = []
                continue
            if value in part:
                found.append(f"{name}: {value} was seen twice")
            if part and value in times and times.get(part[-1], (0, 0))[0] > times[value][1]:
                found.append(f"{name}: {part[-1]} was seen before {value}")
            part.append(value)
        return found
