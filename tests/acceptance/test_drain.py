"""What becomes of parked requests when the process is told to stop, or stops by itself."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn

from tests.acceptance.application import app
from tests.acceptance.client import (
    ClosedByServer,
    Connection,
    Crowd,
    Reply,
    ask,
    replies,
    until_parked,
)
from tests.acceptance.process_server import ProcessServer, serve_in_process
from tests.acceptance.server_commands import SERVERS, ServerCommand, by_day, serve_by_command
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer
from tests.free_port import free_port
from tests.nightly import NIGHTLY
from tests.patience import GENEROUS_S, PATIENCE_S

CURSOR = re.compile(r"[0-9a-f]{12}-[0-9]+")
CROWD = 500
# What becomes of signals is uvicorn's, whichever protocol it has.
BY_PROTOCOL = pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=NIGHTLY) for kind in KINDS[1:])], ids=str
)


def _check_drained(answer: Reply) -> None:
    document = answer.json()
    assert (answer.status, document["reason"], document["signals"]) == (200, "drained", [])
    assert CURSOR.fullmatch(document["cursor"])
    assert answer.headers["connection"] == "close"
    assert 0 < document["poll_after_ms"] <= 2000


async def test_sigterm_answers_every_parked_request(process_server: ProcessServer) -> None:
    """500 parked requests get their 200 "drained"; the process ends within about a second."""
    address = process_server.address
    async with Crowd(address, CROWD) as members:
        for number, member in enumerate(members):
            member.send("GET", f"/purgatory/watch/k{number % 10}?wait=50")
        await until_parked(address, CROWD)
        told_at = time.monotonic()
        process_server.terminate()
        answers = await replies(members)
        ended_at = await asyncio.to_thread(process_server.wait)
    for answer in answers:
        _check_drained(answer)
    assert len({answer.json()["poll_after_ms"] for answer in answers}) > 100, "all return at once"
    last = max(answer.at for answer in answers) - told_at
    print(f"last of {CROWD} answers after {last:.3f} s, exit after {ended_at - told_at:.3f} s")  # noqa: T201 - for -s
    assert ended_at - told_at < GENEROUS_S
    assert process_server.process.returncode == -signal.SIGTERM
    log = "".join(process_server.log)
    assert "Application shutdown complete" in log
    assert "Traceback" not in log and "ERROR" not in log, log


HELD_SERVICE = """
import asyncio
import sys
import threading

from app import __main__ as service
from app.main import create_app


def create(settings):
    app = create_app(settings)

    @app.post("/hold")
    async def hold():
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

    return app


service.create_app = create
sys.exit(service.main())
"""


async def test_a_thread_does_not_keep_the_service(tmp_path: Path) -> None:
    """It exits although a call of its event loop, such as a look-up of a name, never ends."""
    command = [sys.executable, "-c", HELD_SERVICE]
    with ProcessServer(command, PORT="0", PURGATORY_DATA_DIR=str(tmp_path)) as server:
        server.wait_started()
        assert (await ask(server.address, "POST", "/hold")).status == 200
        server.terminate()
        await asyncio.to_thread(server.wait)
    assert server.process.returncode == 0


def _check_refused(refusal: Reply) -> None:
    assert refusal.status == 503
    assert refusal.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refusal.headers["retry-after"]) <= 5
    assert refusal.json()["type"] == "/purgatory/problems/draining"


async def test_a_draining_process_parks_nobody(server: ThreadServer) -> None:
    """While the server still reads, every wait is refused, with Retry-After; the rest goes on."""
    async with Crowd(server.address, 4) as [parked, one, other, by_dependency]:
        parked.send("GET", "/purgatory/watch/k?wait=50")
        assert (await one.get("/purgatory/watch/k?wait=0")).status == 200
        assert (await other.get("/readyz")).json() == {"status": "ready", "missing": []}
        # As many a load balancer asks.
        for path in ("/healthz", "/readyz"):
            assert (await other.request("HEAD", path)).status == 200
        await server.until_parked(1)
        assert await server.call(server.purgatory.drain) == 1
        _check_drained(await parked.reply())
        _check_refused(await one.get("/purgatory/watch/k?wait=50"))
        _check_refused(await other.request("POST", "/purgatory/watch", {"keys": {"k": None}}))
        refusal = await by_dependency.get("/orders/42/paid")
        assert (refusal.status, refusal.headers["connection"]) == (503, "close")
        assert 1 <= int(refusal.headers["retry-after"]) <= 5
    ready = await ask(server.address, "GET", "/readyz")
    assert (ready.status, ready.headers["cache-control"]) == (503, "no-store")
    assert "draining" in ready.json()["missing"][0]
    assert (await ask(server.address, "HEAD", "/readyz")).status == 503
    assert (await ask(server.address, "GET", "/healthz")).status == 200
    statistics = (await ask(server.address, "GET", "/purgatory/statistics")).json()
    assert (statistics["is_draining"], statistics["drained"]) == (True, 1)


async def test_a_draining_process_acknowledges_no_fire(server: ThreadServer) -> None:
    """Nobody would see the signal; what was acknowledged before still is, and jobs are taken."""
    once = {"Idempotency-Key": "once"}
    async with Crowd(server.address, 5) as [first, one, several, again, wrong]:
        fired = await first.request("POST", "/purgatory/keys/k", {"value": 1}, once)
        for connection in (one, several, wrong):
            assert (await connection.get("/healthz")).status == 200
        await server.call(server.purgatory.drain)
        _check_refused(await one.request("POST", "/purgatory/keys/k", {"value": 2}))
        _check_refused(await several.request("POST", "/purgatory/keys", [{"key": "k"}]))
        assert (await wrong.request("POST", "/purgatory/keys/k", {"v": 2})).status == 422
        repeated = await again.request("POST", "/purgatory/keys/k", {"value": 1}, once)
        assert (repeated.status, repeated.body) == (201, fired.body)
    assert server.purgatory.signals.statistics().signals == 1


async def test_the_cursor_of_a_drained_answer_loses_nothing(server: ThreadServer) -> None:
    """What fired before the drain, though too little to end the wait, is in its answer."""
    async with Crowd(server.address, 2) as [single, several]:
        single.send("GET", "/purgatory/watch/a?wait=50&min=5")
        several.send("POST", "/purgatory/watch", {"keys": {"a": None, "b": None}, "until": "all"})
        await server.until_parked(2)
        await server.call(server.purgatory.fire, "a", 1)
        await server.call(server.purgatory.drain)
        one, many = await replies([single, several])
    assert [signal["value"] for signal in one.json()["signals"]] == [1]
    assert one.json()["reason"] == many.json()["reason"] == "drained"
    assert [signal["value"] for signal in many.json()["keys"]["a"]["signals"]] == [1]
    assert set(many.json()["cursors"]) == {"a", "b"}
    assert one.cursor == many.json()["cursors"]["a"] == many.json()["cursors"]["b"]


@BY_PROTOCOL
async def test_a_second_signal_changes_nothing(process_server: ProcessServer) -> None:
    """SIGTERM twice: the parked request has its answer all the same."""
    address = process_server.address
    async with await Connection.open(address) as parked:
        parked.send("GET", "/purgatory/watch/k?wait=50")
        await until_parked(address, 1)
        process_server.terminate()
        process_server.terminate()
        _check_drained(await parked.reply())
        await asyncio.to_thread(process_server.wait)


async def _parked_over_all_workers(probes: list[Connection]) -> int:
    # Workers are told apart by the epoch of their cursors.
    found = [(await probe.get("/purgatory/keys/k")).json() for probe in probes]
    return sum({item["cursor"]: item["waiting"]["here"] for item in found}.values())


async def test_several_workers_are_allowed_by_name() -> None:
    """With allow_separate_workers=True each of two workers serves, parks and drains."""
    app = "tests.acceptance.application:app_of_separate_workers"
    with serve_in_process(app, workers=2) as server:
        async with Crowd(server.address, 10) as members, Crowd(server.address, 20) as probes:
            for member in members:
                member.send("GET", "/purgatory/watch/k?wait=50")
            for _ in range(100):
                if await _parked_over_all_workers(probes) == 10:
                    break
            server.terminate()
            for answer in await replies(members):
                _check_drained(answer)
            await asyncio.to_thread(server.wait)


async def test_half_a_body_does_not_delay_the_exit(
    process_server: ProcessServer, kind: ServerKind
) -> None:
    """A server waits for its response: it is refused. ParkingProtocol closes the connection."""
    head = (
        b"POST /purgatory/keys/k HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{"
    )
    async with Crowd(process_server.address, 2) as [parked, half]:
        parked.send("GET", "/purgatory/watch/other?wait=50")
        await until_parked(process_server.address, 1)
        half.write(head)
        # Behind it on the same server: by then it is being read.
        await ask(process_server.address, "GET", "/purgatory/watch/other?wait=0.01")
        process_server.terminate()
        told_at = time.monotonic()
        _check_drained(await parked.reply())
        try:
            refusal: Reply | None = await half.reply()
        except ClosedByServer:
            refusal = None
        ended_at = await asyncio.to_thread(process_server.wait)
    assert refusal is not None or "ParkingProtocol" in kind.http
    if refusal is not None:
        _check_refused(refusal)
        assert refusal.headers["connection"] == "close"
    assert ended_at - told_at < GENEROUS_S


# Of requests, after which a worker ends, or is replaced by another.
LIMIT = 40
OPTIONS = {
    "uvicorn": f" --limit-max-requests {LIMIT}",
    "gunicorn": f" --max-requests {LIMIT}",
    # Of its own accord it breaks off after 3 s what a busy machine has not drained yet.
    "hypercorn": f" --max-requests {LIMIT} --graceful-timeout 30",
}
LIMITED = [
    ServerCommand(server.name, server.line + OPTIONS[kind])
    for server in SERVERS
    if (kind := server.name.partition("-")[0]) in OPTIONS
]


async def _park(waiting: Connection, streaming: Connection) -> None:
    """Let one connection wait for a minute, and the other follow for an hour."""
    waiting.send("GET", "/purgatory/watch/k?wait=50")
    streaming.send("GET", "/purgatory/watch/k", headers={"Accept": "text/event-stream"})
    await streaming.reader.readuntil(b"event: begin")


async def _check_both_drained(waiting: Connection, streaming: Connection) -> None:
    async with asyncio.timeout(GENEROUS_S):
        _check_drained(await waiting.reply())
        await streaming.reader.readuntil(b"event: drained")


@pytest.mark.parametrize("command", by_day(*LIMITED), ids=str)
async def test_a_number_of_requests(command: ServerCommand) -> None:
    """Waits of a minute and streams of an hour do not keep a worker that accepts nothing."""
    async with serve_by_command(command) as server, Crowd(server.address, 2) as parked:
        await _park(*parked)
        for _ in range(2 * LIMIT):
            with suppress(OSError, ClosedByServer):
                await ask(server.address, "GET", "/purgatory/watch/other?wait=0")
        await _check_both_drained(*parked)


@pytest.mark.parametrize("http", ["h11", "httptools", "purgatory.uvicorn:ParkingProtocol"])
async def test_a_server_in_a_thread_that_has_to_exit(http: str) -> None:
    """No signal handler can be installed there."""
    config = uvicorn.Config(app, port=(port := free_port()), http=http, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
                await asyncio.sleep(0.05)
        async with Crowd(("127.0.0.1", port), 2) as parked:
            await _park(*parked)
            server.should_exit = True
            await _check_both_drained(*parked)
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not thread.is_alive()
