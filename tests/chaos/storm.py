"""Clients that ask for jobs, fire keys and cancel, while services and their store are killed."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.ledger import Deferred, Ledger, MendBook, Request, wall_ms
from tests.chaos.machines import Machine
from tests.chaos.signals.proxy import Proxy
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
    freezes: int
    """How often a service is stopped (SIGSTOP), for up to twice its lease."""
    cuts: int
    """How often the link of a service to the store is cut, and how often it stalls."""
    pauses: int
    """How often all handlers are paused, for some seconds."""
    seed: int
    writers: int = 16
    services: int = 2
    keys: int = 200
    longest_delay: float = 8.0
    """Seconds."""
    apart: float = 30.0
    """Seconds between the clocks of the services."""


class Service:
    """One process that serves and works, and comes back on the same port after each kill."""

    def __init__(self, machine: Machine, signals_url: str, folder: Path, ahead_ms: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._machine = machine
        self.link = None if machine.socket is None else Proxy(machine.socket)
        """To the store, if that is a server."""
        self._environment = {
            **os.environ,
            "CHAOS_SIGNALS": signals_url,
            "CHAOS_FOLDER": str(folder),
            # The clock of a SQLite file is that of its machine.
            "CHAOS_AHEAD_MS": str(0 if machine.socket is None else ahead_ms),
        }
        self._log = (folder / f"service-{self.port}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, without waiting for it."""
        url = self._machine.url if self.link is None else self._machine.url_at(self.link.port)
        command = [sys.executable, "-m", "uvicorn", "tests.chaos.service:app", "--no-access-log"]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            cwd=ROOT,
            env={**self._environment, "CHAOS_STORE": url},
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self) -> None:
        """End the process without warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def freeze(self, seconds: float) -> None:
        """Stop the process for a while, unless it is killed meanwhile."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._log.close()


class Storm:
    """Runs a plan against a store; `ledger` has what its clients saw."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        signals_url: str,
        folder: Path,
        say: Callable[[str], object],
    ) -> None:
        self._plan = plan
        self._machine = machine
        self._random = random.Random(plan.seed)
        self._say = say
        apart_ms = round(plan.apart * 1000)
        self._services = [
            Service(machine, signals_url, folder, apart_ms * number - apart_ms // 2)
            for number in range(plan.services)
        ]
        self._mended = MendBook(folder)
        self._is_over = asyncio.Event()
        self._store_lock = asyncio.Lock()
        self._pause_lock = asyncio.Lock()
        self._links = AsyncExitStack()
        self._acknowledged = 0
        self._keys = [f"order:{number}" for number in range(plan.keys)]
        self.ledger = Ledger()

    async def blow(self) -> None:
        """Go through with it; services and store are up at the end, and at work."""
        for service in self._services:
            if service.link is not None:
                await self._links.enter_async_context(service.link)
            service.start()
        async with httpx.AsyncClient(timeout=10.0) as client:
            await self._wait_ready(client)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._disturb(client, group))
                retrying = group.create_task(self._retry_now_and_then(client))
                firing = group.create_task(self._fire_now_and_then(client))
                writers = [
                    group.create_task(self._write(client, group)) for _ in range(self._plan.writers)
                ]
                await asyncio.wait(writers)
                self._is_over.set()
                await asyncio.wait([firing, retrying])
            await self._wait_ready(client)

    async def calm_down(self) -> None:
        """Wait until no job is left that waits or runs."""
        until_ms = wall_ms() + round(PATIENCE_S * 1000)
        calm = 0
        async with httpx.AsyncClient(timeout=10.0) as client:
            while wall_ms() < until_ms:
                await self._retry_failed(client)
                # A job that ran while those that wait were listed may wait again when those that
                # run are: the next look finds it.
                calm = 0 if await self._are_any_left(client) else calm + 1
                if calm == 3:
                    return
                await asyncio.sleep(0.25)
        raise TimeoutError(f"jobs still wait or run {PATIENCE_S:g} s after the last was deferred")

    async def close(self) -> None:
        """End the services, and their links."""
        for service in self._services:
            service.close()
        await self._links.aclose()

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
        # Not "tick": the next run of a series always waits.
        for state, handler in product(("failed", "waiting", "running"), ("note", "charge")):
            params = {"state": state, "handler": handler, "limit": "1"}
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
        on_fire = chance.choice(["run", "cancel"]) if keys else "run"
        needed = chance.randint(1, len(keys)) if keys else 1
        since = await self._cursor(client, keys) if keys and chance.random() < 0.5 else None
        rounds = chance.choice([0, 0, 0, 1, 2])
        job = Deferred(number, keys, on_fire, Request(wall_ms()), needed=needed, rounds=rounds)
        job.fails = chance.random() < 0.1
        if since is not None:
            job.since_ms = wall_ms()
            # So that keys may fire in between.
            await asyncio.sleep(chance.uniform(0, 0.3))
        self.ledger.jobs.append(job)
        is_bounded = chance.random() < 0.3
        body = {
            "handler": "charge" if is_bounded else "note",
            "concurrency_key": chance.choice([None, "a", "b", "c"]) if is_bounded else None,
            "payload": {"number": number, "rounds": rounds, "fails": job.fails},
            "delay": delay,
            "keys": list(keys),
            "on_fire": on_fire,
            "until": {"count": needed} if keys else "any",
            "since": since,
        }
        answer = await self._ask(client, "POST", "/purgatory/jobs", json=body)
        if answer is not None:
            assert answer.status_code == 201, answer.text
            stored = answer.json()
            job.job_id = stored["id"]
            job.deadline_ms = _milliseconds(stored["deadline"])
            job.added.answered_ms = wall_ms()
        return job

    async def _cursor(
        self, client: httpx.AsyncClient, keys: tuple[str, ...]
    ) -> dict[str, str] | None:
        """Return the cursor of now for each key; None if nobody answers."""
        cursors = {}
        for key in keys:
            answer = await self._ask(client, "GET", f"/purgatory/keys/{key}")
            if answer is None:
                return None
            cursors[key] = answer.json()["cursor"]
        return cursors

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
                # Otherwise it decides its jobs later: some may expire before.
                if not answer.json().get("jobs_pending"):
                    request.answered_ms = wall_ms()
            await asyncio.sleep(self._random.uniform(0, 0.05))

    async def _retry_now_and_then(self, client: httpx.AsyncClient) -> None:
        while not self._is_over.is_set():
            await asyncio.sleep(self._random.uniform(0, 2.0))
            await self._retry_failed(client)

    async def _retry_failed(self, client: httpx.AsyncClient) -> None:
        """Mend some of the jobs that have failed, and retry them."""
        found = await self._ask(client, "GET", "/purgatory/jobs?state=failed&limit=50")
        if found is None:
            return
        for job in found.json()["jobs"]:
            self._mended.mend(job["id"])
            answer = await self._ask(client, "POST", f"/purgatory/jobs/{job['id']}/retry")
            if answer is not None:
                assert answer.status_code in (200, 409), answer.text
                self.ledger.retried += answer.status_code == 200

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

    async def _disturb(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        plan = self._plan
        kinds: dict[str, tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = {
            "service killed": (plan.service_kills, self._kill_service),
            "store killed": (plan.store_kills, self._kill_store),
            "service stopped": (plan.freezes, self._freeze),
            "link cut": (plan.cuts, self._cut),
            "link stalled": (plan.cuts, self._stall),
            "handlers paused": (plan.pauses, functools.partial(self._pause, client)),
        }
        events = [kind for kind, (count, _) in kinds.items() for _ in range(count)]
        self._random.shuffle(events)
        for done, event in enumerate(events):
            # Spread over the jobs, so that all of it happens while there is something to lose.
            goal = plan.jobs * (done + 0.5) / len(events)
            while self._acknowledged < goal:  # noqa: ASYNC110 - an event for each would say less
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._random.uniform(0, 0.3))
            # Several may overlap.
            group.create_task(kinds[event][1]())
            self._say(f"{self._acknowledged} jobs, {event} ({done + 1} of {len(events)})")

    async def _kill_service(self) -> None:
        service = self._random.choice(self._services)
        service.kill()
        service.start()
        self.ledger.service_kills += 1

    async def _kill_store(self) -> None:
        async with self._store_lock:
            if self._machine.kill():
                await asyncio.sleep(self._random.uniform(0, 0.5))
                await asyncio.to_thread(self._machine.start)
                self.ledger.store_kills += 1

    async def _freeze(self) -> None:
        begun_ms = wall_ms()
        service = self._random.choice(self._services)
        await service.freeze(self._random.uniform(0.2, 4.0))
        self._note_still(begun_ms)
        self.ledger.freezes += 1

    async def _cut(self) -> None:
        link = self._random.choice(self._services).link
        if link is not None:
            link.cut()
            self.ledger.cuts += 1

    async def _stall(self) -> None:
        begun_ms, seconds = wall_ms(), self._random.uniform(0.2, 3.0)
        link = self._random.choice(self._services).link
        if link is None:
            await asyncio.to_thread(self._machine.stall, seconds)
        else:
            await link.stall(seconds)
        self._note_still(begun_ms)
        self.ledger.stalls += 1

    def _note_still(self, begun_ms: int) -> None:
        self.ledger.disturbances.append((begun_ms, wall_ms()))

    async def _pause(self, client: httpx.AsyncClient) -> None:
        async with self._pause_lock:
            await self._until_answered(client, "/purgatory/jobs:pause?all=true")
            paused_ms = wall_ms()
            await asyncio.sleep(self._random.uniform(1.5, 3.0))
            self.ledger.pauses.append((paused_ms, wall_ms()))
            await self._until_answered(client, "/purgatory/jobs:resume?all=true")

    async def _until_answered(self, client: httpx.AsyncClient, path: str) -> None:
        while True:
            answer = await self._ask(client, "POST", path)
            if answer is not None:
                break
            await asyncio.sleep(0.1)
        assert answer.status_code == 200, answer.text

    def _anyone(self) -> str:
        return self._random.choice(self._services).url


def _milliseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
