"""A client that is no more than HTTP/1.1 needs: thousands of it fit into one process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tests.patience import PATIENCE_S

Address = tuple[str, int]

# Connections that are made at once: fewer than a server's backlog.
CONNECT_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and when its last byte had come."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; values of one name joined by a comma."""
    body: bytes
    at: float
    """Monotonic seconds."""

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def cursor(self) -> str:
        """The cursor in the body."""
        return str(self.json()["cursor"])


class ClosedByServer(Exception):
    """The server closed the connection before it answered."""


class Connection:
    """One connection, kept alive until it is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect to `address`."""
        return cls(*await asyncio.open_connection(*address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request and wait for its answer."""
        self.send(method, target, body, headers)
        return await self.reply(has_body=method != "HEAD")

    async def get(self, target: str, **headers: str) -> Reply:
        """Send a GET; header names are written with underscores."""
        return await self.request("GET", target, headers=_with_hyphens(headers))

    def send(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request, with `body` as JSON, and do not wait."""
        encoded = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1"]
        if headers is None or "Host" not in headers:
            lines.append("Host: localhost")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(encoded)}"]
        self.write("\r\n".join([*lines, "", ""]).encode("latin-1") + encoded)

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def reply(self, *, has_body: bool = True) -> Reply:
        """Read one answer."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise ClosedByServer from exc
        status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
        status = int(status_line.split(" ", 2)[1])
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name = name.lower()
            headers[name] = ", ".join(filter(None, (headers.get(name), value.strip())))
        body = b""
        if has_body and status not in (204, 304):
            body = await self._body(headers)
        return Reply(status, headers, body, time.monotonic())

    async def rest(self) -> bytes:
        """Read whatever else comes until the server closes the connection."""
        return await self.reader.read()

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return await self.rest()
        body = bytearray()
        while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return bytes(body)


class Crowd:
    """Many connections at once; `async with` closes them all."""

    def __init__(self, address: Address, size: int) -> None:
        self.address = address
        self.size = size
        self.members: list[Connection] = []

    async def __aenter__(self) -> list[Connection]:
        for start in range(0, self.size, CONNECT_AT_ONCE):
            count = min(CONNECT_AT_ONCE, self.size - start)
            opening = (Connection.open(self.address) for _ in range(count))
            self.members += await asyncio.gather(*opening)
        return self.members

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(member.close() for member in self.members))


async def replies(members: Iterable[Connection]) -> list[Reply]:
    """Read one answer from each."""
    return list(await asyncio.gather(*(member.reply() for member in members)))


async def ask(address: Address, method: str, target: str, body: Any = None) -> Reply:
    """Send one request on a connection of its own."""
    async with await Connection.open(address) as connection:
        return await connection.request(method, target, body)


async def until_parked(address: Address, count: int) -> None:
    """Ask the server until it says that `count` requests are parked; fail after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    async with await Connection.open(address) as connection:
        while time.monotonic() < deadline:
            parked = (await connection.get("/purgatory/statistics")).json()["parked"]
            if parked == count:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"{parked} requests are parked, not {count}")


def _with_hyphens(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
