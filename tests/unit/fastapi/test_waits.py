"""Parked requests, in virtual time and without a server: how each wait ends, and that it does."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from purgatory import LimitReachedError, Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, WaitSettings, create_router
from purgatory.fastapi.http.asgi import AsgiConnection
from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.responses import RawResponse
from purgatory.fastapi.routing.endpoints import EndpointContext
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.fastapi.watch.request_parser import WatchRequest, WatchTerms
from purgatory.fastapi.watch.streams import PIECE
from purgatory.jobs import MemoryJobStore
from purgatory.testing import AutojumpEventLoop
from tests.cases import cases
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

WAIT_ID = str(uuid.UUID(int=1))


class Connection(AsgiConnection):
    """Keeps what it is to send."""

    def __init__(self) -> None:
        exchange = Exchange("/")
        super().__init__(exchange.scope, exchange.receive, exchange.send, UnreadResponses())
        self.responses: list[RawResponse] = []

    def respond(self, response: RawResponse) -> None:
        self.responses.append(response)


@pytest.fixture
async def purgatory(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[Purgatory]:
    """An open purgatory."""
    async with make_purgatory(limits=Limits(max_parked=3)) as purgatory:
        yield purgatory


@pytest.fixture
def registry(purgatory: Purgatory) -> WaitRegistry:
    """A registry that allows two waits per client."""
    return WaitRegistry(EndpointContext(purgatory), WaitSettings(max_parked_per_client=2))


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """An application with the endpoints and nothing else."""
    app = FastAPI()
    app.include_router(
        create_router(
            purgatory, settings=WaitSettings(max_parked_per_client=2), authorize=ALLOW_ANYONE
        )
    )
    return app


def _wait(registry: WaitRegistry, connection: AsgiConnection, **changes: Any) -> ParkedRequest:
    options: dict[str, Any] = {"keys": ("k",), "positions": (0,), "wait": 20.0, "wait_id": None}
    options |= changes
    terms = WatchTerms(
        options["wait"],
        min_signals=options.get("min_signals", 1),
        needed_keys=options.get("needed_keys", 1),
        is_single=len(options["keys"]) == 1,
    )
    request = WatchRequest(options["keys"], options["positions"], terms, options["wait_id"])
    return ParkedRequest(request, registry, connection)


def _park(
    registry: WaitRegistry, connection: AsgiConnection, client: str = "", **changes: Any
) -> ParkedRequest:
    wait = _wait(registry, connection, **changes)
    registry.park(wait, client)
    return wait


async def _begun(app: FastAPI, path: str, query: str = "", **headers: str) -> Exchange:
    pairs = {name.replace("_", "-"): value for name, value in headers.items()}
    exchange = Exchange(path, pairs, query_string=query.encode()).begin(app)
    await asyncio.sleep(0)
    return exchange


@pytest.mark.parametrize("way", ["fired", "expired", "cancelled", "abandoned", "drained"])
async def test_a_wait_that_ends_gives_up_its_name_and_its_place(
    purgatory: Purgatory, registry: WaitRegistry, way: str
) -> None:
    """Whichever way it ends, it responds once, or never to a client that has left."""
    connection = Connection()
    wait = _park(registry, connection, "client", wait_id=WAIT_ID)
    assert list(registry._named) == [WAIT_ID]
    if way == "fired":
        await purgatory.fire("k")
    elif way == "expired":
        await asyncio.sleep(20)
    elif way == "cancelled":
        await registry.cancel(WAIT_ID)
    elif way == "drained":
        await purgatory.drain()
    else:
        assert wait.abandon() and not wait.abandon()
    assert wait.is_completed
    assert len(connection.responses) == (way != "abandoned")
    assert (registry._named, registry.clients._counts) == ({}, {})


async def test_a_purgatory_that_is_not_open_refuses(
    app: FastAPI, purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no use to wait for it: 503; the log says once what to do."""
    await purgatory.close()
    other = Purgatory("mounted")
    app = FastAPI()
    app.include_router(create_router(other, authorize=ALLOW_ANYONE))
    reply = await (await _begun(app, "/purgatory/watch/k", "wait=5")).reply()
    assert (reply.status, reply.json()["type"].rpartition("/")[2]) == (503, "not-open")
    other_reply = await (await _begun(app, "/purgatory/watch/k", "wait=0")).reply()
    assert other_reply.status == 503
    [said] = [each.message for each in caplog.records if "is not open" in each.message]
    assert "'mounted'" in said and "install it in the outermost application" in said
    assert "outermost" not in reply.json()["detail"]


async def test_too_many_parked_requests_of_a_client(
    purgatory: Purgatory, registry: WaitRegistry
) -> None:
    """The third is refused and parks nothing; another client may, and so may a poll."""
    waits = [_park(registry, Connection(), "one") for _ in range(2)]
    with pytest.raises(LimitReachedError, match="too many parked requests"):
        _park(registry, Connection(), "one")
    assert purgatory.statistics().refused == {"max_parked_per_client": 1}
    poll = Connection()
    _park(registry, poll, "one", wait=0)
    assert len(poll.responses) == 1
    waits.append(_park(registry, Connection(), "two"))
    for wait in waits:
        wait.abandon()
    assert registry.clients._counts == {}


@cases("max_parked, is_counted", [(100_000, False), (100_001, True)])
async def test_clients_are_counted_if_their_limit_is_below_that_of_all(
    make_purgatory: Callable[..., Purgatory], max_parked: int, *, is_counted: bool
) -> None:
    """By default it is the same, so that the limit on all of them is enough."""
    purgatory = make_purgatory(limits=Limits(max_parked=max_parked))
    registry = WaitRegistry(EndpointContext(purgatory), WaitSettings())
    assert registry.clients.is_active is is_counted


async def test_a_full_purgatory_counts_no_client(
    purgatory: Purgatory, registry: WaitRegistry
) -> None:
    """A request that is refused by the limit on all of them takes no place of its client's."""
    waits = [_park(registry, Connection()) for _ in range(3)]
    with pytest.raises(Exception, match="3"):
        _park(registry, Connection(), "one")
    assert registry.clients._counts == {}
    for wait in waits:
        wait.abandon()


@pytest.mark.parametrize(
    ("keys", "path"), [(("k",), "/purgatory/watch/k"), (("k", "j"), "/purgatory/watch")]
)
async def test_a_response_that_cannot_be_made_is_a_500(
    purgatory: Purgatory,
    registry: WaitRegistry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    keys: tuple[str, ...],
    path: str,
) -> None:
    """A fault of ours, at the address of the wait: the log says why, and the client is told."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(registry.responses, "response", fail)
    connection = Connection()
    _park(registry, connection, keys=keys, positions=(0,) * len(keys))
    await purgatory.fire("k")
    (response,) = connection.responses
    assert (response.status, json.loads(response.body)["instance"]) == (500, path)
    assert "ZeroDivisionError" in caplog.text


async def test_a_response_that_cannot_be_sent_ends_the_task(
    purgatory: Purgatory, registry: WaitRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else would: the failure is logged, and whoever fired is not to blame."""

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")

    async def send(message: Message) -> None:
        raise RuntimeError("the transport is broken")

    connection = AsgiConnection(Exchange("/").scope, receive, send, UnreadResponses())

    async def serve() -> None:
        await connection.served(_park(registry, connection))

    serving = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    assert (await purgatory.fire("k")).completed == 1
    await serving
    assert "the transport is broken" in caplog.text
    assert not serving.cancelled()


@pytest.mark.parametrize(("address", "client"), [("192.0.2.7", "192.0.2.7"), ("", None)])
async def test_a_wait_is_of_the_client_at_its_address(
    registry: WaitRegistry, address: str, client: str | None
) -> None:
    """As the list of waits shows it, if the server says it and no identity is known."""
    exchange = Exchange("/")
    scope = {**exchange.scope, "client": (address, 1) if address else None}
    wait = _wait(
        registry, AsgiConnection(scope, exchange.receive, exchange.send, UnreadResponses())
    )
    assert (wait.address, wait.client) == (client, client)


async def test_a_task_that_is_cancelled_takes_its_wait_along(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """As by a server that stops."""
    exchange = await _begun(app, "/purgatory/watch/k", "wait=20")
    assert exchange.task is not None
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.end()
    assert purgatory.parked == 0


async def test_a_wait_that_is_over_before_its_task_waits(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """The task sends the response by itself."""
    await purgatory.fire("k", "there")
    reply = await (await _begun(app, "/purgatory/watch/k", "cursor=0&wait=20")).reply()
    assert reply.json()["signals"][0]["value"] == "there"
    assert purgatory.statistics().fired <= 1


async def test_a_response_of_several_pieces_ends_a_parked_request(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """It is sent in a task of its own, as the client may read it slowly."""
    exchange = await _begun(app, "/purgatory/watch/k", "wait=20&min=3")
    values = [letter * 30_000 for letter in "abc"]
    for value in values:
        await purgatory.fire("k", value)
    reply = await exchange.reply()
    assert [signal["value"] for signal in reply.json()["signals"]] == values
    assert len(exchange.sent) > 2


@cases("size, is_at_once", [(10, True), (100_000, False)])
async def test_a_long_response_is_not_sent_by_the_task_that_fires(
    make_purgatory: Callable[..., Purgatory], size: int, *, is_at_once: bool
) -> None:
    """A client that reads slowly must not hold it up; a short one takes no turn of the loop."""
    sent: list[tuple[Message, asyncio.Task[Any] | None]] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")

    async def send(message: Message) -> None:
        sent.append((message, asyncio.current_task()))

    send.__module__ = "uvicorn.protocols.http"
    async with make_purgatory(limits=Limits(max_value_bytes=2 * size)) as purgatory:
        registry = WaitRegistry(EndpointContext(purgatory), WaitSettings())
        connection = AsgiConnection(Exchange("/").scope, receive, send, UnreadResponses())
        serving = asyncio.ensure_future(connection.served(_park(registry, connection)))
        await asyncio.sleep(0)
        await purgatory.fire("k", "x" * size)
        assert bool(sent) is is_at_once
        await until_in_turns(lambda: sum(len(part.get("body", b"")) for part, _ in sent) > size)
        assert {task is asyncio.current_task() for _, task in sent} == {is_at_once}
        serving.cancel()


async def test_a_trimmed_signal_is_410(make_purgatory: Callable[..., Purgatory]) -> None:
    """Of a wait whose signal was trimmed before it could be read: lost, and said so."""
    async with make_purgatory(limits=Limits(max_signals_per_key=1)) as purgatory:
        registry = WaitRegistry(EndpointContext(purgatory), WaitSettings())
        connection = Connection()
        _park(registry, connection, positions=(0,), min_signals=3)
        await purgatory.fire("k")
        await purgatory.fire("k")
        assert [response.status for response in connection.responses] == [410]
        counts = purgatory.statistics()
        assert (counts.outdated, counts.fired) == (1, 0)


def _make_with_jobs(make_purgatory: Callable[..., Purgatory]) -> Purgatory:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    purgatory = make_purgatory(jobs=MemoryJobStore(now_ms=loop.clock.wall_ms))
    purgatory.handled_elsewhere(["later"])
    return purgatory


async def test_too_many_waits_for_jobs_of_a_client(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """They count with its parked requests: one more is 429, and one that ends makes room."""
    async with _make_with_jobs(make_purgatory) as purgatory:
        app = FastAPI()
        settings = WaitSettings(max_parked_per_client=1)
        app.include_router(create_router(purgatory, settings=settings, authorize=ALLOW_ANYONE))
        handle = await purgatory.defer("later", {}, delay=60)
        path = f"/purgatory/jobs/{handle.id}"
        etag = (await (await _begun(app, path)).reply()).headers["etag"]
        conditions = {"if_none_match": etag, "prefer": "wait=20"}
        waiting = await _begun(app, path, **conditions)
        [listed] = (await (await _begun(app, "/purgatory/waits")).reply()).json()["waits"]
        assert (listed["kind"], listed["client"]) == ("job-wait", "127.0.0.1")
        refused = await (await _begun(app, path, **conditions)).reply()
        assert (refused.status, refused.json()["limit"]) == (429, "max_parked_per_client")
        waiting.leave()
        await waiting.end()
        assert (purgatory.parked, waiting.sent) == (0, [])
        changed = await _begun(app, path, **conditions)
        await handle.cancel()
        reply = await changed.reply()
        assert (reply.status, reply.json()["state"]) == (200, "cancelled")


async def test_a_wait_that_is_woken_while_the_server_reads_the_body(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """Neither a stream nor a wait for a job takes that for a client that has left."""
    async with _make_with_jobs(make_purgatory) as purgatory:
        app = FastAPI()
        app.include_router(create_router(purgatory, authorize=ALLOW_ANYONE))
        handle = await purgatory.defer("later", {}, delay=60)
        path = f"/purgatory/jobs/{handle.id}"
        etag = (await (await _begun(app, path)).reply()).headers["etag"]
        headers = {"if-none-match": etag, "prefer": "wait=20"}
        stream = Exchange("/purgatory/watch/k", {"accept": "text/event-stream"}).begin(app)
        waiting = Exchange(path, headers).begin(app)
        # In every turn: what they wait for, and then nothing that is news to them.
        for number in range(20):
            await purgatory.fire("k", number)
            purgatory.jobs.watchers.on_change(handle.id)
            await asyncio.sleep(0)
        assert not stream.is_complete and not waiting.sent
        await handle.cancel()
        assert (await waiting.reply()).json()["state"] == "cancelled"
        await purgatory.fire("k", "last")
        await until_in_turns(lambda: b'"last"' in stream.sent[-1].get("body", b""))
        stream.leave()
        await stream.end()


async def test_a_history_is_streamed_in_pieces(make_purgatory: Callable[..., Purgatory]) -> None:
    """Each of bounded size, whatever a client that was away for long has missed."""
    async with _make_with_jobs(make_purgatory) as purgatory:
        app = FastAPI()
        app.include_router(create_router(purgatory, authorize=ALLOW_ANYONE))
        for number in range(20):
            await purgatory.fire("k", f"{number:<5000}")
        headers = {"accept": "text/event-stream", "last-event-id": "0"}
        stream = Exchange("/purgatory/watch/k", headers).begin(app)
        await until_in_turns(
            lambda: bool(stream.sent) and b'"19 ' in stream.sent[-1].get("body", b"")
        )
        pieces = [message["body"] for message in stream.sent if message.get("body")]
        assert sum(map(len, pieces)) > 100_000
        assert max(map(len, pieces)) < PIECE + 6000
        stream.leave()
        await stream.end()


async def test_a_wait_for_a_job_that_does_not_change(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """304 at its end with the same ETag; 503 or 304 when the process drains."""
    async with _make_with_jobs(make_purgatory) as purgatory:
        app = FastAPI()
        app.include_router(create_router(purgatory, authorize=ALLOW_ANYONE))
        handle = await purgatory.defer("later", {}, delay=600)
        path = f"/purgatory/jobs/{handle.id}"
        etag = (await (await _begun(app, path)).reply()).headers["etag"]
        reply = await (await _begun(app, path, if_none_match=etag, prefer="wait=20")).reply()
        assert (reply.status, reply.headers["etag"]) == (304, etag)
        reply = await (await _begun(app, path, if_none_match=etag, prefer="wait=600")).reply()
        # The maximum of the settings.
        assert reply.headers["preference-applied"] == "wait=55"
        waiting = await _begun(app, path, if_none_match=etag, prefer="wait=20")
        await asyncio.sleep(1)
        await purgatory.drain()
        reply = await waiting.reply()
        assert (reply.status, reply.headers["connection"]) == (304, "close")
