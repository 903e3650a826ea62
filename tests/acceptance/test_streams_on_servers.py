"""Many streams at once on each server, begun in each way: none ends while its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import httpx
import pytest

from tests.acceptance.client import ask, until_parked
from tests.acceptance.process_server import ProcessServer
from tests.acceptance.server_commands import ServerCommand, serve_by_command
from tests.cases import cases
from tests.needs import STREAMED_BY_FASTAPI
from tests.nightly import by_night
from tests.patience import PATIENCE_S

APP = "tests.acceptance.streams_application:app"
# In these ways a request waits before its response begins, with the first value that is fired.
LATE = ("delayed", "long-poll", "plain")
WAYS = (
    *(() if STREAMED_BY_FASTAPI.args[0] else ("follow",)),
    *("park", "post", "post-a-body", "watch", *LATE),
)


@pytest.fixture(scope="module")
async def server(command: ServerCommand) -> AsyncIterator[ProcessServer]:
    """One process of it."""
    async with serve_by_command(command, APP) as running:
        yield running


class Stream:
    """A response that is read as it comes."""

    def __init__(self, client: httpx.AsyncClient, way: str, key: str) -> None:
        method, headers, content = "GET", {}, None
        path = f"/{way}/{key}"
        if way == "watch":
            path, headers = f"/purgatory{path}", {"Accept": "text/event-stream"}
        elif way == "long-poll":
            headers = {"If-None-Match": '"none"', "Prefer": "wait=50"}
        elif way.startswith("post"):
            method, path = "POST", f"/park/{key}"
            content = b"unread" if way == "post-a-body" else None
        self._exchange = client.stream(method, path, headers=headers, content=content)
        self._chunks: AsyncIterator[bytes]
        self._received = b""

    async def begin(self, stack: AsyncExitStack) -> None:
        """Return once the response has begun."""
        response = await stack.enter_async_context(self._exchange)
        assert response.status_code == 200, await response.aread()
        self._chunks = response.aiter_raw()

    async def has(self, text: bytes) -> bool:
        """Return True once `text` has come, False if the stream ends without it."""
        with suppress(httpx.RemoteProtocolError):
            while text not in self._received:
                self._received += await anext(self._chunks)
        return text in self._received


@pytest.mark.parametrize("has_http2", [False, True], ids=["http1", "http2"])
@cases("way", WAYS)
async def test_no_stream_ends_while_its_client_is_there(
    server: ProcessServer, command: ServerCommand, way: str, has_http2: bool
) -> None:
    """Each gets all that is fired."""
    if has_http2 and not command.has_http2:
        pytest.skip(f"{command} has no HTTP/2")
    address, key = server.address, f"{way}-{has_http2}"
    count = 60 if way == "park" else by_night(60, 6)
    url = f"http://{address[0]}:{address[1]}"
    async with httpx.AsyncClient(
        base_url=url, http1=not has_http2, http2=has_http2, timeout=PATIENCE_S
    ) as client:
        streams = [Stream(client, way, key) for _ in range(count)]
        async with AsyncExitStack() as stack:
            beginning = []
            # One after the other: a server that has nothing else to do is slower to read a body.
            for number, stream in enumerate(streams, 1):
                beginning.append(asyncio.create_task(stream.begin(stack)))
                await until_parked(address, number)
            for value in ("first", "last"):
                await ask(address, "POST", f"/purgatory/keys/{key}", {"value": value})
                await asyncio.gather(*beginning)
                # A response to one value has the other not.
                if way != "plain" or value == "first":
                    found = await asyncio.gather(*(each.has(value.encode()) for each in streams))
                    assert found.count(True) == count, "".join(server.log)
    await until_parked(address, 0)
    assert "Traceback" not in "".join(server.log), "".join(server.log)
