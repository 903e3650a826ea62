"""The page on ownership, run as it is; and what an application answers when nobody can own."""

from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install
from purgatory.ownership import LeaseLostError, OwnershipError, OwnershipUnavailableError
from tests.cases import cases
from tests.pages.blocks import DOCS, blocks
from tests.valkey_server import ValkeyServer


def _application(server: ValkeyServer, address: str) -> FastAPI:
    """The application of the page, at another server and address."""
    block, _ = blocks(DOCS / "how-to" / "ownership.md")
    text = block.text.replace("redis://localhost", server.url)
    names: dict[str, Any] = {}
    exec(text.replace("http://10.0.0.7:8000", address), names)
    application = names["app"]
    assert isinstance(application, FastAPI)
    return application


async def test_the_page_keeps_its_promise(tmp_path: Path) -> None:
    """The first worker owns the game, the second redirects to it, and takes over when it stops."""
    with ValkeyServer(tmp_path) as server:
        first = _application(server, "http://first")
        second = _application(server, "http://second")
        transports = {
            "all://first": httpx.ASGITransport(first),
            "all://second": httpx.ASGITransport(second),
        }
        async with (
            httpx.AsyncClient(mounts=transports, follow_redirects=True) as http,
            second.router.lifespan_context(second),
        ):
            async with first.router.lifespan_context(first):
                await http.post("http://first/games/g/moves?move=a")
                answer = await http.post("http://second/games/g/moves?move=b")
                assert (answer.url.host, answer.json()["moves"]) == ("first", "ab")
            after = await http.post("http://second/games/g/moves?move=c")
            assert (after.url.host, after.json()["moves"]) == ("second", "abc")
            assert after.json()["epoch"] > answer.json()["epoch"]


@cases("kind", [LeaseLostError, OwnershipUnavailableError])
async def test_an_error_of_ownership_is_temporary(kind: type[OwnershipError]) -> None:
    """Clients are told to come again."""
    app = FastAPI()
    install(app, Purgatory())

    @app.get("/")
    async def fail() -> None:
        raise kind

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as http:
        answer = await http.get("/")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert answer.json()["type"].endswith("ownership-unavailable")
    assert answer.json()["detail"] == kind.__doc__
