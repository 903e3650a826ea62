"""The configuration of nginx in the docs, between clients and servers that are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.acceptance.client import Address, ask
from tests.free_port import free_port
from tests.pages.blocks import DOCS, blocks
from tests.pages.test_blocks import NEEDS_NGINX, temporary_paths
from tests.patience import PATIENCE_S

PAGE = DOCS / "how-to" / "proxies.md"


class _Server:
    """Serves one request on each connection, and closes that as it has read the next one.

    As a server does that ends, or finds a connection idle, while a request is on its way.
    """

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in (b"HTTP/1.1 204 No Content\r\n\r\n", b""):
            head = await reader.readuntil(b"\r\n\r\n")
            self.methods.append(head.partition(b" ")[0].decode())
            writer.write(response)
        writer.close()


@asynccontextmanager
async def _nginx(folder: Path, upstream: int) -> AsyncIterator[Address]:
    """Run the page's first configuration before a server at the port `upstream`."""
    [text, *_] = [each.text for each in blocks(PAGE) if each.language == "nginx"]
    address = ("127.0.0.1", free_port())
    for shown, actual in (("127.0.0.1:8000", f"127.0.0.1:{upstream}"), ("8080", str(address[1]))):
        assert text.count(shown) == 1
        text = text.replace(shown, actual)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary_paths(folder)}\n{text}\n}}\n"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/log"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(OSError):
                    await ask(address, "GET", "/")
                    break
                assert process.returncode is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield address
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@NEEDS_NGINX
async def test_a_connection_that_the_server_closes(tmp_path: Path) -> None:
    """A GET is repeated on another one; a POST, which may have fired, is not."""
    upstream = _Server()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    async with server, _nginx(tmp_path, server.sockets[0].getsockname()[1]) as address:
        # On each connection so far there was one request.
        upstream.methods.clear()
        assert (await ask(address, "GET", "/purgatory/watch/k")).status == 204
        assert (await ask(address, "POST", "/purgatory/keys/k")).status == 502
    assert upstream.methods == ["GET", "GET", "POST"]
