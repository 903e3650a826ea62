"""Installing into applications that have a life of their own."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import Depends, FastAPI, Request

from purgatory import Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    ParkDep,
    PurgatoryDep,
    create_lifespan,
    create_router,
    install,
)
from tests.acceptance.client import Crowd, ask
from tests.acceptance.thread_server import KINDS, ServerKind, each_kind, serve

PROBLEM = "application/problem+json"


# What is tested here is above the server.
kind = each_kind(KINDS[0])


async def test_its_own_lifespan_runs_as_before(purgatory: Purgatory, kind: ServerKind) -> None:
    """Its startup and shutdown run, its state is seen, and the purgatory is open within."""
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        events.append("up")
        yield {"greeting": "hello"}
        events.append("down")

    app = FastAPI(lifespan=lifespan)

    @app.get("/greeting")
    async def greeting(request: Request, found: PurgatoryDep) -> list[object]:
        return [request.state.greeting, found.is_open, found is purgatory]

    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, kind) as server:
        assert (await ask(server.address, "GET", "/greeting")).json() == ["hello", True, True]
        assert events == ["up"]
    assert events == ["up", "down"]
    assert not purgatory.is_open


async def test_lifespan_and_router_by_themselves(purgatory: Purgatory, kind: ServerKind) -> None:
    """Without install: the lifespan opens it, and the dependency finds it in the state."""
    app = FastAPI(lifespan=create_lifespan(purgatory))

    @app.get("/parked")
    async def parked(park: ParkDep) -> str:
        return (await park("k", timeout=50.0)).status

    with serve(app, purgatory, kind) as server:
        async with Crowd(server.address, 1) as [member]:
            member.send("GET", "/parked")
            await server.until_parked(1)
            await server.call(purgatory.fire, "k")
            assert (await member.reply()).json() == "fired"


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_router_included_twice(purgatory: Purgatory, kind: ServerKind) -> None:
    """Under two prefixes there is one purgatory, which is opened once and closed in the end."""
    app = FastAPI()
    router = create_router(purgatory, authorize=ALLOW_ANYONE)
    app.include_router(router)
    app.include_router(router, prefix="/v2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operations = app.openapi()["paths"]
    assert {"/purgatory/statistics", "/v2/purgatory/statistics"} <= set(operations)
    with serve(app, purgatory, kind) as server:
        async with Crowd(server.address, 3) as [first, second, firer]:
            first.send("GET", "/purgatory/watch/k?wait=50")
            second.send("GET", "/v2/purgatory/watch/k?wait=50")
            await server.until_parked(2)
            fired = await firer.request("POST", "/v2/purgatory/keys/k", {"value": 1})
            assert fired.json()["completed"] == 2
            for member in (first, second):
                assert (await member.reply()).json()["reason"] == "fired"
    assert not purgatory.is_open


@pytest.mark.parametrize("prefix", ["/", "purgatory", "/purgatory/"])
def test_a_prefix_begins_with_a_slash_and_does_not_end_with_one(prefix: str) -> None:
    """ValueError says so, rather than routes that nobody finds."""
    with pytest.raises(ValueError, match="prefix is"):
        install(FastAPI(), Purgatory(), prefix=prefix, authorize=ALLOW_ANYONE)


async def test_another_prefix(purgatory: Purgatory, kind: ServerKind) -> None:
    """Endpoints and problems stand under the prefix that was asked for."""
    app = FastAPI()
    install(app, purgatory, prefix="/api/waits", authorize=ALLOW_ANYONE)
    with serve(app, purgatory, kind) as server:
        assert (await ask(server.address, "GET", "/api/waits/watch/k?wait=0")).status == 200
        refusal = (await ask(server.address, "GET", "/api/waits/watch/k?wait=-1")).json()
        assert refusal["type"] == "/api/waits/problems/bad-parameter"
        assert (await ask(server.address, "GET", refusal["type"])).status == 200


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_dependency_that_knows_the_key_and_reads_the_body(
    purgatory: Purgatory, kind: ServerKind
) -> None:
    """Both stay there for the endpoint, which parks and fires as without a dependency."""
    seen: list[object] = []

    async def note(request: Request, key: str = "") -> AsyncIterator[None]:
        seen.append((key, await request.body()))
        yield
        seen.append("closed")

    app = FastAPI()
    app.include_router(
        create_router(purgatory, authorize=ALLOW_ANYONE), dependencies=[Depends(note)]
    )
    with serve(app, purgatory, kind) as server:
        async with Crowd(server.address, 3) as [watcher, firer, leaving]:
            watcher.send("POST", "/purgatory/watch", {"keys": {"a/b": None}})
            leaving.send("GET", "/purgatory/watch/k?wait=50")
            await server.until_parked(2)
            fired = await firer.request("POST", "/purgatory/keys/a/b", {"value": 1})
            assert (fired.status, fired.json()["completed"]) == (201, 1)
            assert list((await watcher.reply()).json()["keys"]) == ["a/b"]
        await server.until_parked(0)
    assert ("k", b"") in seen
    assert ("a/b", b'{"value": 1}') in seen
    assert seen.count("closed") == 3


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_under_a_root_path(purgatory: Purgatory, kind: ServerKind) -> None:
    """Behind a proxy that takes a prefix off, keys are the same; addresses are the outer ones."""
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, kind, root_path="/api") as server:
        answer = await ask(server.address, "GET", "/purgatory/watch/a/b?wait=0")
        assert (answer.status, answer.json()["key"]) == (200, "a/b")
        refusal = await ask(server.address, "GET", "/purgatory/watch/a/b?wait=x")
        assert refusal.json()["instance"] == "/api/purgatory/watch/a/b"
        assert refusal.json()["type"] == "/api/purgatory/problems/bad-parameter"
