"""Clients that ask for jobs, fire keys and cancel, while services and their store are killed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from tests.chaos.ledger import Deferred, Ledger, Request, wall_ms
from tests.chaos.machines import Machine
from tests.free_port import free_port
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
NO_ANSWER = (httpx.TransportError, httpx.TimeoutException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How hard it blows."""

    jobs: int
    """As many are acknowledged; how many are asked for depends on who is dead meanwhile."""
    service_kills: int
    store_kills: int
    seed: int
    writers: int = 16
    services: int = 2
    keys: int = 200
    longest_delay: float = 8.0
    """Seconds."""


class Service:
    """One process that serves and works, and comes back on the same port after each kill."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            **os.environ,
            "CHAOS_STORE": machine.url,
            "CHAOS_FOLDER": str(folder),
        }
        self._log = (folder / f"service-{self.port}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, without waiting for it."""
        command = [sys.executable, "-m", "uvicorn", "tests.chaos.service:app", "--no-access-log"]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self) -> None:
        """End the process without warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._log.close()


class Storm:
    """Runs a plan against a store; `ledger` has what its clients saw."""

    def __init__(self, plan: Plan, machine: Machine, folder: Path, say: Callable[[str], object]):
        self._plan = plan
        self._machine = machine
        self._random = random.Random(plan.seed)
        self._say = say
        self._services = [Service(machine, folder) for _ in range(plan.services)]
        self._is_over = asyncio.Event()
        self._acknowledged = 0
        self._keys = [f"order:{number}" for number in range(plan.keys)]
        self.ledger = Ledger()

    async def blow(self) -> None:
        """Go through with it; services and store are up at the end, and at work."""
        for service in self._services:
            service.start()
        async with httpx.AsyncClient(timeout=10.0) as client:
            await self._wait_ready(client)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._kill_now_and_then())
                firing = group.create_task(self._fire_now_and_then(client))
                writers = [
                    group.create_task(self._write(client, group)) for _ in range(self._plan.writers)
                ]
                await asyncio.wait(writers)
                self._is_over.set()
                await firing
            await self._wait_ready(client)

    async def calm_down(self) -> None:
        """Wait until no job is left that waits or runs."""
        until_ms = wall_ms() + round(PATIENCE_S * 1000)
        async with httpx.AsyncClient(timeout=10.0) as client:
            while wall_ms() < until_ms:
                if not await self._are_any_left(client):
                    return
                await asyncio.sleep(0.25)
        raise TimeoutError(f"jobs still wait or run {PATIENCE_S:g} s after the last was deferred")

    def close(self) -> None:
        """End the services."""
        for service in self._services:
            service.close()

    async def _wait_ready(self, client: httpx.AsyncClient) -> None:
        until_ms = wall_ms() + round(PATIENCE_S * 1000)
        for service in self._services:
            while True:
                try:
                    if (await client.get(f"{service.url}/readyz")).status_code == 200:
                        break
                except NO_ANSWER:
                    pass
                if wall_ms() > until_ms:
                    raise TimeoutError(f"{service.url} is not ready after {PATIENCE_S:g} s")
                await asyncio.sleep(0.05)

    async def _are_any_left(self, client: httpx.AsyncClient) -> bool:
        for state in ("waiting", "running"):
            params = {"state": state, "limit": "1"}
            try:
                answer = await client.get(f"{self._anyone()}/purgatory/jobs", params=params)
            except NO_ANSWER:
                return True
            if answer.status_code != 200 or answer.json()["jobs"]:
                return True
        return False

    async def _write(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        chance = self._random
        while self._acknowledged < self._plan.jobs:
            job = await self._defer(client, len(self.ledger.jobs))
            if not job.is_acknowledged:
                # The service may have stored it all the same: nobody knows, and it counts for
                # nothing.
                await asyncio.sleep(0.1)
                continue
            self._acknowledged += 1
            if chance.random() < 0.15:
                delay = chance.uniform(0, self._plan.longest_delay)
                group.create_task(self._cancel(client, job, delay))

    async def _defer(self, client: httpx.AsyncClient, number: int) -> Deferred:
        chance = self._random
        keys = tuple(chance.sample(self._keys, chance.choice([0, 1, 1, 2, 3])))
        delay = chance.uniform(0.05, self._plan.longest_delay)
        on_fire = chance.choice(["run", "cancel"])
        job = Deferred(number, keys, on_fire, Request(wall_ms()))
        self.ledger.jobs.append(job)
        body = {
            "handler": "note",
            "payload": {"number": number},
            "delay": delay,
            "keys": list(keys),
            "on_fire": on_fire,
        }
        answer = await self._ask(client, "POST", "/purgatory/jobs", json=body)
        if answer is not None:
            assert answer.status_code == 201, answer.text
            stored = answer.json()
            job.job_id = stored["id"]
            job.deadline_ms = _milliseconds(stored["deadline"])
            job.added.answered_ms = wall_ms()
        return job

    async def _cancel(self, client: httpx.AsyncClient, job: Deferred, delay: float) -> None:
        await asyncio.sleep(delay)
        request = Request(wall_ms())
        job.cancels.append(request)
        while True:
            answer = await self._ask(client, "DELETE", f"/purgatory/jobs/{job.job_id}")
            if answer is not None:
                break
            await asyncio.sleep(0.1)
        if answer.status_code == 200:
            request.answered_ms = wall_ms()
        elif answer.status_code == 404:
            job.is_missing = True
        else:
            assert answer.status_code == 409, answer.text

    async def _fire_now_and_then(self, client: httpx.AsyncClient) -> None:
        while not self._is_over.is_set():
            key = self._random.choice(self._keys)
            request = Request(wall_ms())
            self.ledger.fires.setdefault(key, []).append(request)
            answer = await self._ask(client, "POST", f"/purgatory/keys/{key}", json={"value": 1})
            if answer is not None:
                assert answer.status_code == 201, answer.text
                request.answered_ms = wall_ms()
            await asyncio.sleep(self._random.uniform(0, 0.05))

    async def _ask(
        self, client: httpx.AsyncClient, method: str, path: str, json: object = None
    ) -> httpx.Response | None:
        """Return the answer, or None where there is none or it is 503: try again later."""
        try:
            answer = await client.request(method, self._anyone() + path, json=json)
        except NO_ANSWER:
            answer = None
        if answer is None or answer.status_code == 503:
            self.ledger.refused += 1
            return None
        return answer

    async def _kill_now_and_then(self) -> None:
        plan, ledger = self._plan, self.ledger
        kills = ["service"] * plan.service_kills + ["store"] * plan.store_kills
        self._random.shuffle(kills)
        for done, kill in enumerate(kills):
            # Spread over the jobs, so that all of it happens while there is something to lose.
            goal = plan.jobs * (done + 0.5) / len(kills)
            while self._acknowledged < goal:  # noqa: ASYNC110 - an event for each would say less
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._random.uniform(0, 0.3))
            if kill == "service":
                service = self._random.choice(self._services)
                service.kill()
                service.start()
                ledger.service_kills += 1
            elif self._machine.kill():
                await asyncio.sleep(self._random.uniform(0, 0.5))
                await asyncio.to_thread(self._machine.start)
                ledger.store_kills += 1
            self._say(f"{self._acknowledged} jobs, {kill} killed ({done + 1} of {len(kills)})")

    def _anyone(self) -> str:
        return self._random.choice(self._services).url


def _milliseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
