"""EventSource of a browser and of npm, and httpx-sse: streams that end again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, WaitSettings, install
from tests.acceptance.thread_server import KINDS, KINDS_BY_DAY, ThreadServer, serve
from tests.browser.chromium import needs_chromium, start_browser
from tests.event_source.node import NODE, NODE_MODULES, needs_node
from tests.nightly import by_night
from tests.patience import PATIENCE_S

HERE = Path(__file__).parent
SIGNALS = 40
PAUSE_S = 0.05


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """One loop for the clients."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def reports() -> asyncio.Queue[Any]:
    """What clients say in the end."""
    return asyncio.Queue()


# By day the service's own protocol: tests/acceptance/test_event_streams.py streams on others.
@pytest.fixture(params=by_night(KINDS_BY_DAY, KINDS[-1:]), ids=str)
def server(request: pytest.FixtureRequest, reports: asyncio.Queue[Any]) -> Iterator[ThreadServer]:
    """A server whose streams are short: clients reconnect all the time."""
    app, purgatory = FastAPI(), Purgatory()
    settings = WaitSettings(max_stream=0.2, heartbeat=0.05)
    install(app, purgatory, settings=settings, authorize=ALLOW_ANYONE)

    @app.get("/pages/{name}")
    async def page(name: str) -> FileResponse:
        return FileResponse(HERE / f"{name}.html")

    @app.post("/report")
    async def report(request: Request) -> None:
        app.state.report = await request.json()

    with serve(app, purgatory, request.param) as running:
        yield running


async def _run(server: ThreadServer) -> None:
    """Fire, while streams end and begin; then end them for good."""
    await server.until_parked(1)
    for number in range(SIGNALS):
        await server.call(server.purgatory.fire, "k", number)
        await asyncio.sleep(PAUSE_S)
    await server.until_parked(1)
    # The last signal was sent before.
    await server.call(server.purgatory.cancel, "k")


async def _report(server: ThreadServer) -> dict[str, Any]:
    await server.call(server.until, lambda: hasattr(server.app.state, "report"))
    found: dict[str, Any] = server.app.state.report
    return found


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"]}) as process:
        try:
            yield
        finally:
            process.kill()


@needs_chromium
async def test_chromium(server: ThreadServer, tmp_path: Path) -> None:
    """A page gets every signal once, in order, and stops at 204."""
    with start_browser(f"{server.url}/pages/page", tmp_path / "profile"):
        await _run(server)
        found = await _report(server)
    assert found["values"] == list(range(SIGNALS))
    assert found["opened"] > 1


@needs_chromium
async def test_the_module_in_chromium(server: ThreadServer, tmp_path: Path) -> None:
    """The module that the router serves fires, follows over many streams, and says what is lost."""
    with start_browser(f"{server.url}/pages/module", tmp_path / "profile"):
        await _run(server)
        found = await _report(server)
    assert found == {"values": list(range(SIGNALS)), "error": [True, 410, True]}


@needs_node
async def test_npm_eventsource(server: ThreadServer) -> None:
    """So does npm's."""
    with _process([str(NODE), str(HERE / "client.mjs"), server.url, str(NODE_MODULES)]):
        await _run(server)
        found = await _report(server)
    assert found["values"] == list(range(SIGNALS))
    assert found["opened"] > 1


@asynccontextmanager
async def _events(client: httpx.AsyncClient, last: str) -> AsyncIterator[httpx_sse.EventSource]:
    headers = {"Last-Event-ID": last} if last else {}
    async with httpx_sse.aconnect_sse(
        client, "GET", "/purgatory/watch/k?cursor=0", headers=headers
    ) as source:
        yield source


async def test_httpx_sse(server: ThreadServer) -> None:
    """httpx-sse reads the events, and reconnects by the last id that it has."""
    values: list[int] = []
    last, opened = "", 0

    async def follow() -> None:
        nonlocal last, opened
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            while True:
                async with _events(client, last) as source:
                    opened += 1
                    if source.response.status_code == 204:
                        return
                    async for event in source.aiter_sse():
                        last = event.id
                        if event.event == "signal":
                            values.append(event.json()["value"])

    following = asyncio.create_task(follow())
    await _run(server)
    await asyncio.wait_for(following, PATIENCE_S)
    assert values == list(range(SIGNALS))
    assert opened > 1 and last == "end"
