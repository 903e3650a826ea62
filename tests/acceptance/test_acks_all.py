"""The replicated log on a real socket: the demonstration, and what only a server can show."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from examples.acks_all import __main__ as program
from examples.acks_all.app import create_app
from examples.acks_all.client import BrokerClient, RequestFailed
from examples.acks_all.config import BrokerConfig
from examples.acks_all.demonstration import run_demonstration
from examples.acks_all.event_listener import EventListener
from examples.acks_all.schemas import Produced
from examples.acks_all.server import serve
from examples.acks_all.table import Table
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Purgatory
from tests.nightly import NIGHTLY
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
ORDERS = TopicPartition("orders", 0)
# Slow enough for followers to keep up that share their machine with other tests.
PACE_MS = 6000


@dataclass
class Running:
    """A broker that runs, who talks to it, and what it has parked."""

    address: str
    client: BrokerClient
    purgatory: Purgatory
    event_listener: EventListener

    async def parked(self, key: str, count: int) -> None:
        """Return once exactly `count` operations wait on `key`."""
        async with asyncio.timeout(PATIENCE_S):
            await self.event_listener.until(lambda: self.purgatory.waiting(key) == count)

    async def empty(self) -> None:
        """Return once nothing waits for anything."""
        async with asyncio.timeout(PATIENCE_S):
            await self.event_listener.until(lambda: self.purgatory.parked == 0)

    async def fetch_as(self, replica_id: int, offset: int) -> list[str]:
        """Fetch as a follower would, without waiting."""
        fetched = await self.client.fetch(ORDERS, offset, replica_id=replica_id, max_wait_ms=0)
        return [record.value for record in fetched.records]

    def produce(self, value: str = "value") -> asyncio.Task[Produced]:
        """Begin to produce with acks=all."""
        return asyncio.create_task(self.client.produce(ORDERS, [value]))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio", marks=NIGHTLY),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run clients and server on the loop of the standard library and on uvloop."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


Middleware = Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]


@pytest.fixture(params=[None])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    """A broker with two followers that never fall out of the ISR; perhaps behind a middleware."""
    event_listener = EventListener()
    purgatory = Purgatory("broker", listeners=[event_listener])
    app = create_app(BrokerConfig(replica_lag_ms=10**6), purgatory=purgatory)
    middleware: Middleware | None = request.param
    if middleware is not None:
        app.middleware("http")(middleware)
    async with serve(app, purgatory) as address, BrokerClient(address) as client:
        yield Running(address, client, purgatory, event_listener)
    assert (purgatory.parked, purgatory.statistics().timers) == (0, 0)


# On the other loop it is told by the program below.
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_the_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that the demonstration expects, at another pace."""
    async with asyncio.timeout(PATIENCE_S):
        assert await run_demonstration(replica_lag_ms=PACE_MS) == []
    assert "not-enough-replicas-after-append" in capsys.readouterr().out


def test_the_demonstration_runs_as_a_program() -> None:
    """It prints what happened, and exits with 0."""
    command = [sys.executable, "-m", "examples.acks_all", "--replica-lag-ms", str(PACE_MS)]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stderr == ""
    head, *rows = told.stdout.splitlines()
    assert head.split() == ["time", "event", "high", "watermark", "ISR", "latency"]
    assert len(rows) > 15


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["it is answered"], 1)])
async def test_the_demonstration_exits_with_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, failures: list[str], code: int
) -> None:
    """With 1 where an expectation is not met."""

    async def tell(replica_lag_ms: int) -> list[str]:
        return failures

    monkeypatch.setattr(program, "run_demonstration", tell)
    assert await program.main(PACE_MS) == code


def test_an_expectation_that_is_not_met_is_printed_and_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And one that is met is neither."""
    table = Table()
    table.expect(True, "it waits")
    table.expect(False, "it is answered")
    assert table.failures == ["it is answered"]
    assert capsys.readouterr().out.split() == ["NOT", "MET:", "it", "is", "answered"]


async def test_one_fetch_answers_200_producers(broker: Running) -> None:
    """All are parked at once; the fetch that acknowledges the last record answers each of them."""
    producing = [broker.produce(f"{number}") for number in range(200)]
    await broker.parked(ORDERS.produce_key, 200)
    assert len(await broker.fetch_as(1, 0)) == 200
    assert len(await broker.fetch_as(2, 0)) == 200
    await broker.fetch_as(1, 200)
    assert broker.purgatory.waiting(ORDERS.produce_key) == 200
    await broker.fetch_as(2, 200)
    produced = await asyncio.gather(*producing)
    assert all(one.error is None for one in produced)
    assert sorted(one.base_offset or 0 for one in produced) == list(range(200))
    await broker.empty()


async def test_nobody_is_answered_before_the_followers_have_it(broker: Running) -> None:
    """Having been sent it is not having it: the next fetch says that it arrived."""
    producing = broker.produce()
    await broker.parked(ORDERS.produce_key, 1)
    for replica_id, offset in ((1, 0), (1, 1), (2, 0)):
        await broker.fetch_as(replica_id, offset)
        assert not producing.done()
        assert (await broker.client.describe(ORDERS)).high_watermark == 0
    await broker.fetch_as(2, 1)
    assert (await producing).error is None
    assert (await broker.client.describe(ORDERS)).high_watermark == 1


async def test_a_producer_that_leaves_leaves_nothing(broker: Running) -> None:
    """Its operation goes with its connection; its record stays, for it may be committed yet."""
    producing = [broker.produce() for _ in range(5)]
    await broker.parked(ORDERS.produce_key, 5)
    for task in producing[1:]:
        task.cancel()
    await broker.parked(ORDERS.produce_key, 1)
    await broker.fetch_as(1, 5)
    await broker.fetch_as(2, 5)
    assert (await producing[0]).error is None
    await broker.empty()
    assert (await broker.client.describe(ORDERS)).high_watermark == 5


async def test_a_consumer_that_leaves_leaves_nothing(broker: Running) -> None:
    """The same for a fetch."""
    consuming = asyncio.create_task(broker.client.fetch(ORDERS, 0, max_wait_ms=50_000))
    await broker.parked(ORDERS.fetch_key, 1)
    consuming.cancel()
    await broker.empty()


async def test_a_connection_goes_on_after_a_delayed_answer(broker: Running) -> None:
    """The answer that another request sent is as good as one of its own."""
    limits = httpx.Limits(max_connections=1)
    body = {"partitions": [{"topic": "orders", "partition": 0, "records": ["value"]}]}
    async with httpx.AsyncClient(
        base_url=broker.address, limits=limits, trust_env=False, timeout=20
    ) as http:
        for end_offset in (1, 2, 3):
            posting = asyncio.create_task(http.post("/produce", json=body))
            await broker.parked(ORDERS.produce_key, 1)
            await broker.fetch_as(1, end_offset)
            await broker.fetch_as(2, end_offset)
            assert (await posting).status_code == 200


async def test_whoever_waits_is_answered_when_the_broker_drains(broker: Running) -> None:
    """At once: a produce with a problem, a fetch with what there is, who comes with a refusal."""
    producing = broker.produce()
    consuming = asyncio.create_task(broker.client.fetch(ORDERS, 0, max_wait_ms=50_000))
    await broker.parked(ORDERS.produce_key, 1)
    await broker.parked(ORDERS.fetch_key, 1)
    await broker.purgatory.drain()
    error = (await producing).error
    assert error is not None
    assert error.type == "/problems/not-acknowledged"
    assert (await consuming).records == []
    with pytest.raises(RequestFailed) as refused:
        await broker.client.produce(ORDERS, ["late"])
    assert refused.value.problem.type == "/problems/broker-closing"


async def _through_a_queue(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    return await call_next(request)


@pytest.mark.parametrize("broker", [_through_a_queue], indirect=True)
async def test_answers_find_their_way_through_a_middleware(broker: Running) -> None:
    """One that makes `send` wait: a task does the rest, and everybody is answered."""
    producing = [broker.produce() for _ in range(5)]
    await broker.parked(ORDERS.produce_key, 5)
    await broker.fetch_as(1, 5)
    await broker.fetch_as(2, 5)
    assert all(produced.error is None for produced in await asyncio.gather(*producing))
    await broker.empty()
