"""The network: what hosts send to each other and to Redis, late, lost, or twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from fastapi import FastAPI

from purgatory.ownership import OwnershipUnavailableError
from purgatory.ownership.lease import LeaseResult, LeaseStep
from tests.ownership.lease_model import LeaseModel
from tests.ownership.simulation.host import Host, World
from tests.unit.exchange import Exchange

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
        self.on_commit: Callable[[LeaseStep], object] = lambda step: None

    def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps."""
        results: list[LeaseResult] = []
        for step in steps:
            record = self.model.apply(step)
            results.append(record)
            # A delayed one that a later one has overtaken is not applied.
            if step.action == "commit" and record.is_done and record.version == step.version:
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


class HttpExchange:
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
        url = request.url
        self._exchange = Exchange(
            url.path,
            [(name.decode(), value.decode()) for name, value in request.headers.raw],
            method=request.method,
            body=[request.content],
            raw_path=url.raw_path,
            query_string=url.query,
            server=(url.host, 80),
            state={},
        )
        self._world = client.world
        worker.on_killed.append(self.reset)

    def begin(self) -> None:
        """Call the application, on the worker."""
        self._serving = self._worker.start(self._serve())

    def reset(self) -> None:
        """Break the connection: the worker is dead."""
        error = httpx.ReadError("connection reset", request=self._request)
        self._world.after(_latency(self._world), lambda: self._client.deliver(self._fail, error))

    def disconnect(self) -> None:
        """Close the connection: the client has gone."""
        if self.reset in self._worker.on_killed:
            self._worker.on_killed.remove(self.reset)
        gone = self._exchange.leave
        self._world.after(_latency(self._world), lambda: self._worker.deliver(gone))

    def _fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)

    def _succeed(self, response: httpx.Response) -> None:
        if not self.response.done():
            self.response.set_result(response)

    async def _serve(self) -> None:
        exchange, request = self._exchange, self._request
        await self._app(exchange.scope, exchange.receive, exchange.send)
        if self._worker.is_dead or not exchange.is_complete:
            return
        reply = exchange.answer()
        self._on_response(request, reply.status, reply.body)
        response = httpx.Response(
            reply.status, headers=reply.headers, content=reply.body, request=request
        )
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
        exchange = HttpExchange(self._client, *found, request, self._on_response)
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
