"""Paths that clients choose, in the headers of responses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.fastapi.http.responses import encoded, header_lines
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve
from tests.cases import cases

JOB = {"handler": "h", "delay": 3600, "dedupe_key": "d"}


@pytest.fixture(params=KINDS, ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    """A server whose endpoints are below a parameter of the path."""
    kind: ServerKind = request.param
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("h", http=True)
    async def handle(payload: object) -> None:
        pass

    install(app, purgatory, prefix="/{tenant}/purgatory", authorize=ALLOW_ANYONE)
    with serve(app, purgatory, kind) as running:
        yield running


@cases(
    "tenant",
    ["t", "a%0d%0aSet-Cookie:%20x=1", "a%0ab", "%C3%BC%E2%82%AC", "%ff", "a%20b%22%3E", "%25"],
)
async def test_addresses_are_quoted(server: ThreadServer, tenant: str) -> None:
    """No line is added to the headers, and the address leads back to the job."""
    async with await Connection.open(server.address) as connection:
        for _ in range(2):
            # Stored, and then a duplicate.
            reply = await connection.request("POST", f"/{tenant}/purgatory/jobs", JOB)
            assert reply.status in (201, 409)
            assert "set-cookie" not in reply.headers
            found = await connection.get(reply.headers["location"])
            assert found.json()["handler"] == "h"
        await connection.request("POST", f"/{tenant}/purgatory/jobs", {**JOB, "dedupe_key": "e"})
        reply = await connection.get(f"/{tenant}/purgatory/jobs?limit=1")
        assert reply.status == 200 and "set-cookie" not in reply.headers
        following = reply.headers["link"].partition("<")[2].partition(">")[0]
        assert following == reply.json()["next"]
        assert len((await connection.get(following)).json()["jobs"]) == 1


async def test_a_line_feed_at_the_end_of_a_path(server: ThreadServer) -> None:
    """Starlette finds the route all the same: the job has its response."""
    async with await Connection.open(server.address) as connection:
        reply = await connection.request("POST", "/t/purgatory/jobs%0a", JOB)
        assert reply.status in (201, 404)
        assert (await connection.get("/t/purgatory/keys/k")).status == 200


@cases("value", ["a\r\nb", "a\nb", "a\rb", "a\0b"])
def test_lines_are_not_put_into_headers(value: str) -> None:
    """Whatever comes: it is an error of ours."""
    with pytest.raises(ValueError, match="X-Any"):
        encoded({"X-Any": value})
    with pytest.raises(ValueError, match="X-Any"):
        header_lines({"X-Any": value})
