"""The API pages, in a real browser that can reach nothing but this machine."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn

from app.main import create_app
from app.settings import Settings
from tests.browser.chromium import needs_chromium
from tests.browser.devtools import browser
from tests.nightly import NIGHTLY

pytestmark = [needs_chromium, pytest.mark.anyio]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The service, on a socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(Settings()), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


# By day one of them: what they load is bundled in the same way.
@pytest.mark.parametrize(
    "path", ["/docs", *(pytest.param(path, marks=NIGHTLY) for path in ("/redoc", "/"))]
)
async def test_the_page_works_without_the_internet(address: str, path: str) -> None:
    """Every script and style comes from this process, and the operations are shown."""
    async with browser() as page:
        await page.open(address + path)
        # The summaries of two operations, which only a script that ran has put there.
        for summary in ("Wait for a key", "Fire a key"):
            await page.until(f"document.body?.textContent.includes({summary!r})")


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_no_other_site_can_frame_the_page_or_add_scripts(address: str, page: str) -> None:
    """Only scripts of this process run, and the inline one that starts the page."""
    with urllib.request.urlopen(address + page) as response:
        policy = dict(
            directive.strip().split(" ", 1)
            for directive in response.headers["Content-Security-Policy"].split(";")
        )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in policy["script-src"] and policy["script-src"].startswith("'self'")
    assert policy["connect-src"] == "'self'"
