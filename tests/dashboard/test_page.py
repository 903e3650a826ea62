"""The page of the dashboard: its size, its policy, and who may load it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import purgatory
from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, install
from purgatory.fastapi.dashboard.routes import PAGE, TYPES

pytestmark = pytest.mark.anyio

STATIC = Path(purgatory.__file__).parent / "fastapi/dashboard/static"
MAX_BYTES = 100_000


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def served(**options: object) -> FastAPI:
    app = FastAPI()
    install(app, Purgatory(), **options)  # type: ignore[arg-type] # any of install's
    return app


def test_all_files_together_have_less_than_100_kb() -> None:
    """Without a framework and a build step, as they are in the package."""
    files = sorted(path.name for path in STATIC.iterdir())
    assert files == sorted(TYPES)
    assert sum((STATIC / name).stat().st_size for name in files) < MAX_BYTES


class _Inline(HTMLParser):
    """Collects what a strict policy would not run, and the addresses of what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.found.append(f"{tag} {name}")
            if name == "src" or (tag == "link" and name == "href"):
                self.loaded.append(value or "")
        if tag == "style" or (tag == "script" and "src" not in dict(attrs)):
            self.found.append(tag)


def test_nothing_is_inline_or_from_elsewhere() -> None:
    """Scripts and styles are files of the page; no text becomes markup."""
    parser = _Inline()
    parser.feed((STATIC / PAGE).read_text(encoding="utf-8"))
    assert parser.found == []
    assert parser.loaded and all(each.startswith("dashboard/static/") for each in parser.loaded)
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for imported in re.findall(r'from "(.*?)"', text):
            assert imported.removeprefix("./") in TYPES
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
        )
        assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}


async def test_anyone_may_load_the_page_and_nothing_else() -> None:
    """It has nothing of anyone in it: the token is entered there."""
    app = served(authorize=BearerTokens.from_text("token-of-the-operator *"))
    async with client(app) as http:
        for path in ("/dashboard", *(f"/dashboard/static/{name}" for name in TYPES)):
            response = await http.get(f"/purgatory{path}")
            assert response.status_code == 200
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "*" not in policy
            head = await http.head(f"/purgatory{path}")
            assert (head.status_code, head.headers["etag"]) == (200, response.headers["etag"])
            known = {"If-None-Match": response.headers["etag"]}
            again = await http.get(f"/purgatory{path}", headers=known)
            assert (again.status_code, again.content) == (304, b"")
        for path in ("/dashboard/snapshot", "/waits"):
            assert (await http.get(f"/purgatory{path}")).status_code == 401
        assert (await http.post("/purgatory/dashboard/actions")).status_code == 401
        assert (await http.put("/purgatory/dashboard")).headers["allow"] == "GET, HEAD"
        assert (await http.head("/purgatory/waits")).status_code == 405
        for name in ("../routes.py", "..%2Froutes.py", "x"):
            assert (await http.get(f"/purgatory/dashboard/static/{name}")).status_code == 404


async def test_a_file_that_is_asked_for_wrongly() -> None:
    """With a parameter it does not have, or by a long name, of which the answer has a part."""
    async with client(served(authorize=ALLOW_ANYONE)) as http:
        address = "/purgatory/dashboard/static/"
        refused = await http.get(f"{address}dashboard.js?version=1")
        assert (refused.status_code, refused.json()["param"]) == (422, "version")
        unknown = await http.get(address + "x" * 100)
        assert unknown.status_code == 404
        assert unknown.json()["detail"] == f"the dashboard has no file {'x' * 64!r}"


async def test_without_authorize_it_is_closed() -> None:
    """With the sentence that says how to open it; `endpoints` may leave it out."""
    async with client(served()) as http:
        for path in ("dashboard", "dashboard/dashboard.js", "dashboard/snapshot", "waits"):
            response = await http.get(f"/purgatory/{path}")
            assert response.status_code == 403
            assert "endpoints of dashboard are closed" in response.json()["detail"]
    async with client(served(authorize=ALLOW_ANYONE, endpoints={"watch"})) as http:
        assert (await http.get("/purgatory/dashboard")).status_code == 404
