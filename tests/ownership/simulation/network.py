"""The network: what hosts send to each other and to Redis, late, lost, or twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from fastapi import FastAPI

from purgatory.ownership import OwnershipUnavailableError
from purgatory.ownership.lease import Commit, LeaseResult, LeaseStep
from tests.ownership.lease_model import LeaseModel
from tests.ownership.simulation.host import Host, World

# The model's clock, which is the time in microseconds, begins at a time as real ones are.
EPOCH_US = 1_763_800_000_000_000


class Faults:
    """How bad the network is, in probabilities."""

    lost_request = 0.0
    lost_reply = 0.0
    late_request = 0.0
    repeated = 0.0


class RedisHost:
    """The lease store's server; `RemoteLeaseStore` is its client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = LeaseModel(lambda: EPOCH_US + world.clock.now_ns() // 1_000)
        self.is_down = False
        self.faults = Faults()
        self.on_commit: Callable[[Commit], object] = lambda step: None

    def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps."""
        results: list[LeaseResult] = []
        for step in steps:
            record = self.model.apply(step)
            results.append(record)
            # A delayed one that a later one has overtaken is not applied.
            if isinstance(step, Commit) and record.is_done and record.version == step.version:
                self.on_commit(step)
        return results


class RemoteLeaseStore:
    """The lease store as one worker reaches it."""

    def __init__(self, redis: RedisHost, host: Host) -> None:
        self._redis = redis
        self._host = host
        self.is_cut = False

    async def open(self) -> None:
        """Connect later."""

    async def close(self) -> None:
        """Nothing stays open."""

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Send steps, and wait for the reply."""
        world, faults = self._redis.world, self._redis.faults
        reply: asyncio.Future[list[LeaseResult]] = self._host.loop.create_future()
        chance = world.random.random
        errors: list[LeaseResult] = [OwnershipUnavailableError("no connection")] * len(steps)

        def set_reply(results: list[LeaseResult]) -> None:
            if not reply.done():
                reply.set_result(results)

        def answer(results: list[LeaseResult]) -> None:
            if not self.is_cut and chance() >= faults.lost_reply:
                world.after(_latency(world), lambda: self._host.deliver(set_reply, results))

        def arrive() -> None:
            if self._redis.is_down:
                answer(errors)
            else:
                answer(self._redis.run(steps))

        if self._redis.is_down or self.is_cut:
            # Refused at once, or silence.
            if chance() < 0.5:
                world.after(0.001, lambda: self._host.deliver(set_reply, errors))
        elif chance() >= faults.lost_request:
            delay = _latency(world)
            if chance() < faults.late_request:
                delay += world.random.uniform(0, 8)
            world.after(delay, arrive)
            if chance() < faults.repeated:
                world.after(delay + world.random.uniform(0, 8), arrive)
        return await reply


class Exchange:
    """One HTTP request to a worker, on both of its ends."""

    def __init__(
        self,
        client: Host,
        worker: Host,
        app: FastAPI,
        request: httpx.Request,
        on_response: Callable[[httpx.Request, int, bytes], object],
    ) -> None:
        self._client = client
        self._worker = worker
        self._app = app
        self._request = request
        self._on_response = on_response
        self.response: asyncio.Future[httpx.Response] = client.loop.create_future()
        self._is_disconnected: asyncio.Event | None = None
        self._world = client.world
        worker.on_killed.append(self.reset)

    def begin(self) -> None:
        """Call the application, on the worker."""
        self._is_disconnected = asyncio.Event()
        self._serving = self._worker.start(self._serve())

    def reset(self) -> None:
        """Break the connection: the worker is dead."""
        error = httpx.ReadError("connection reset", request=self._request)
        self._world.after(_latency(self._world), lambda: self._client.deliver(self._fail, error))

    def disconnect(self) -> None:
        """Close the connection: the client has gone."""
        if self.reset in self._worker.on_killed:
            self._worker.on_killed.remove(self.reset)
        self._world.after(_latency(self._world), lambda: self._worker.deliver(self._on_gone))

    def _on_gone(self) -> None:
        if self._is_disconnected is not None:
            self._is_disconnected.set()

    def _fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)

    def _succeed(self, response: httpx.Response) -> None:
        if not self.response.done():
            self.response.set_result(response)

    async def _serve(self) -> None:
        request, url = self._request, self._request.url
        status, headers, body = 0, [], b""
        messages = [{"type": "http.request", "body": request.content, "more_body": False}]
        is_over = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            assert self._is_disconnected is not None
            waits = [asyncio.ensure_future(self._is_disconnected.wait())]
            waits.append(asyncio.ensure_future(is_over.wait()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    is_over.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": url.path,
            "raw_path": url.raw_path,
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": (url.host, 80),
            "state": {},
        }
        await self._app(scope, receive, send)
        if self._worker.is_dead:
            return
        self._on_response(request, status, body)
        response = httpx.Response(status, headers=headers, content=body, request=request)
        self._world.after(
            _latency(self._world), lambda: self._client.deliver(self._succeed, response)
        )


class SimulatedTransport(httpx.AsyncBaseTransport):
    """How members reach workers, by name."""

    def __init__(
        self,
        client: Host,
        find: Callable[[str], tuple[Host, FastAPI] | None],
        on_response: Callable[[httpx.Request, int, bytes], object],
    ) -> None:
        self._client = client
        self._find = find
        self._on_response = on_response
        self.cut: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; fail as httpx does."""
        await request.aread()
        world = self._client.world
        await asyncio.sleep(_latency(world))
        name = request.url.host
        found = self._find(name)
        timeout = request.extensions["timeout"]["read"]
        if name in self.cut and world.random.random() < 0.5:
            await asyncio.sleep(timeout)
            raise httpx.ConnectTimeout("cut", request=request)
        if name in self.cut or found is None:
            raise httpx.ConnectError("refused", request=request)
        exchange = Exchange(self._client, *found, request, self._on_response)
        found[0].deliver(exchange.begin)
        try:
            async with asyncio.timeout(timeout):
                return await exchange.response
        except TimeoutError as exc:
            raise httpx.ReadTimeout("no response", request=request) from exc
        finally:
            exchange.disconnect()


def _latency(world: World) -> float:
    return world.random.uniform(0.0002, 0.005)


def json_of(body: bytes) -> dict[str, Any]:
    """Return the object in a body."""
    found: dict[str, Any] = json.loads(body)
    return found
