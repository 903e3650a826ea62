"""Clients that wait with cursors, and fires from everywhere, while everything is made to fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.signals.servers import (
    LONGEST_STALL_S,
    ClusterServers,
    OneServer,
    SentinelServers,
    Servers,
)
from tests.chaos.storm import ROOT
from tests.patience import PATIENCE_S

FAULTS = ("kill worker", "kill server", "cut", "stall", "empty", "lose writes")
SERVERS: dict[str, type[Servers]] = {
    "one": OneServer,
    "cluster": ClusterServers,
    "sentinel": SentinelServers,
}
# A loss is reported when those that know of it have read the log again, all of them by then.
REPORTED_S = 15.0
# Until a fire that was not acknowledged is repeated.
REPEAT_S = 0.1
# What a worker may need more at the end: fragments, and a wait for each client more or less. It
# keeps MAX_SIGNALS from early on (see worker.py), so anything else that grows is a leak.
GROWN_BY = 1.25
GROWN_BYTES = 10 * 1024 * 1024


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
    servers: str = "one"
    """One of SERVERS."""
    wakes_a_second: int = 400
    """How often clients are to be woken: this process can tell them no more."""

    @property
    def fire_pause_s(self) -> float:
        """How long each of those that fire pauses."""
        wakes = max(1.0, self.clients / self.keys)
        return max(0.005, self.firing * wakes / self.wakes_a_second)

    @property
    def wait_s(self) -> float:
        """How long a client waits: all of them ask a few hundred times a second."""
        return max(1.0, self.clients / self.wakes_a_second)

    @property
    def patience_s(self) -> float:
        """How long workers may take until they can fire: thousands of clients return at once."""
        return PATIENCE_S * max(1.0, self.clients / 1_000)


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
                # A client that has ended meanwhile has cancelled its own.
                if not (future := self._replies.pop(reply["id"])).done():
                    future.set_result(reply)
        except OSError:
            pass
        replies, self._replies = self._replies, {}
        for future in replies.values():
            if not future.done():
                future.set_exception(NoAnswerError())


@dataclass(slots=True)
class Client:
    """What one client was told, in order."""

    key: str
    cursor: str | None = None
    # (turn, value): a value of None is a cursor that has expired.
    told: list[tuple[int, int | None]] = field(default_factory=list)
    begun: int = 0
    # When it was given its cursor.
    since_s: float = 0.0


class SignalStorm:
    """Runs a plan; `faults` has what was broken. Turns count everything that happens."""

    def __init__(self, plan: SignalPlan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._random = random.Random(plan.seed)
        self._servers = SERVERS[plan.servers](folder, self._random)
        self._lost_s = -REPORTED_S
        self._unexplained: list[str] = []
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
        try:
            await self._servers.start()
            url = self._servers.url
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
            await self._servers.close()

    async def _run(self) -> list[str]:
        await self._settled()
        waiting = [asyncio.create_task(self._wait(client)) for client in self.clients]
        firing = [asyncio.create_task(self._fire()) for _ in range(self._plan.firing)]
        faults = [name for name, count in self._plan.faults.items() for _ in range(count)]
        self._random.shuffle(faults)
        # Unlike the others, the first worker is never killed: it must not grow.
        warm = after = await self._memory()
        for number, fault in enumerate(faults):
            if number == len(faults) // 4:
                warm = await self._memory()
            await asyncio.sleep(self._plan.pause_s)
            if fault in self._servers.lossy:
                self._lost_s = float("inf")
            await self._do(fault)
            if fault in self._servers.lossy:
                self._lost_s = time.monotonic()
            self.counts[fault] += 1
            if number % 20 == 19:
                sys.stderr.write(f"{number + 1} of {len(faults)} faults, {dict(self.counts)}\n")
        after = await self._memory()
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
        self.counts["KiB of the first worker, warm"] = warm // 1024
        self.counts["KiB of the first worker, at the end"] = after // 1024
        if after > GROWN_BY * warm + GROWN_BYTES:
            left.append(f"the first worker has grown from {warm} to {after} bytes")
        judged = itertools.chain.from_iterable(map(self._judge, self.clients))
        return [*left, *self._unexplained, *judged]

    async def _memory(self) -> int:
        return int((await self._workers[0].ask("statistics"))["bytes"])

    async def _do(self, fault: str) -> None:
        worker = self._random.choice(self._workers[1:])
        match fault:
            case "kill worker":
                await worker.kill()
                await worker.start()
            case "kill server":
                await self._servers.kill()
            case "cut":
                await self._servers.cut()
            case "stall":
                await self._servers.stall(self._random.uniform(0.1, LONGEST_STALL_S))
            case "empty":
                await self._servers.empty()
            case "lose writes":
                await self._servers.lose_writes(self._plan.pause_s)
            case "restart":
                await self._servers.restart()
            case "fail over":
                await self._servers.fail_over()
            case "move slot":
                await self._servers.move_slot()
        if fault != "cut":
            # What only a killed worker knew to be lost, nobody could say.
            await self._settled()

    async def _settled(self) -> None:
        """Return once each worker can fire: its connections are those of now."""
        async with asyncio.timeout(self._plan.patience_s):
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
            asked, asked_s = next(self._turns), time.monotonic()
            # Every other fire is repeated until it is acknowledged, and has to be seen once.
            name = f"name:{value}" if value % 2 else None
            reply = await self._ask_to_fire(key, value, name)
            if name is not None and "error" in reply:
                reply = await self._repeat(key, value, name)
            if "seq" in reply:
                self.counts["acknowledged"] += 1
                self.fired[key].append((asked, next(self._turns), value))
            else:
                self.counts["refused"] += 1
            if "conflict" in reply:
                self._unexplained.append(f"{name}, of {key}, is no other request's")
            if name is not None and "seq" in reply and value % 5 == 0:
                await self._reuse(name, value, asked_s)
            await asyncio.sleep(self._plan.fire_pause_s)

    async def _repeat(self, key: str, value: int, name: str) -> dict[str, Any]:
        reply: dict[str, Any] = {"error": "refused"}
        while self._is_firing and "error" in reply:
            self.counts["repeated"] += 1
            await asyncio.sleep(REPEAT_S)
            reply = await self._ask_to_fire(key, value, name)
        return reply

    async def _ask_to_fire(self, key: str, value: int, name: str | None) -> dict[str, Any]:
        worker = self._random.choice(self._workers)
        try:
            if name is None:
                return await worker.ask("fire", key=key, value=value)
            return await worker.ask("fire named", key=key, value=value, name=name)
        except NoAnswerError:
            return {"error": "no answer"}

    async def _reuse(self, name: str, value: int, since_s: float) -> None:
        """Fire a key that nobody waits on under a name that is another request's."""
        reply = await self._ask_to_fire(f"reused:{value}", value, name)
        if "conflict" in reply:
            self.counts["noticed names"] += 1
        elif "seq" in reply and self._lost_s < since_s:
            self._unexplained.append(f"{name} was that of another request")

    async def _wait(self, client: Client) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over
            try:
                reply = await self._ask(client, 0.0 if is_last else self._plan.wait_s)
            except NoAnswerError:
                await asyncio.sleep(0.02)
                continue
            if "error" in reply:
                is_last = False
                await asyncio.sleep(0.05)
            elif "expired" in reply:
                client.told.append((next(self._turns), None))
                if self._lost_s < min(client.since_s, time.monotonic() - REPORTED_S):
                    self._unexplained.append(f"nothing was lost: {reply['expired']}")
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
            if "cursor" in reply or "head" in reply:
                client.since_s = time.monotonic()

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
