"""A proxy in front of a server, whose connections can be cut or stalled."""

from __future__ import annotations

import asyncio
from typing import Self


class Proxy:
    """Passes bytes between clients and `port`; cut, it refuses; stalled, it swallows them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cut()
        self._is_flowing.set()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Close every connection, and refuse new ones."""
        self._is_cut = True
        for writer in self._writers:
            writer.close()

    def stall(self) -> None:
        """Pass nothing on, and say nothing."""
        self._is_flowing.clear()

    def mend(self) -> None:
        """Work again."""
        self._is_cut = False
        self._is_flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        both = {writer, server_writer}
        self._writers |= both
        try:
            await asyncio.gather(
                self._pass_on(reader, server_writer), self._pass_on(server_reader, writer)
            )
        finally:
            self._writers -= both
            for end in both:
                end.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._is_flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
