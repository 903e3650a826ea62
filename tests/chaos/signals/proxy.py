"""A proxy in front of a server, which cuts and stalls connections."""

from __future__ import annotations

import asyncio
from typing import Self


class Proxy:
    """Forwards connections at `port` to another port, or to a unix socket."""

    def __init__(self, target: int | str) -> None:
        self.target = target
        """The port or the path of the socket that new connections are forwarded to."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self._flows.set()
        self.cut()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def stall(self, seconds: float) -> None:
        """Forward nothing for a while."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        self._flows.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self.target, str):
                other_reader, other = await asyncio.open_unix_connection(self.target)
            else:
                other_reader, other = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, other}
        self._writers |= both
        try:
            await asyncio.gather(self._copy(reader, other), self._copy(other_reader, writer))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except (OSError, RuntimeError):
            # On uvloop, a transport that was reset raises the latter.
            pass
        finally:
            writer.transport.abort()
