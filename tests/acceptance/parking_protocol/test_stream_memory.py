"""What an event stream costs while nothing happens: a connection, a parked request, no task."""

from __future__ import annotations

import gc
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from tests.acceptance.parking_protocol.requests import get, is_direct
from tests.acceptance.thread_server import ThreadServer
from tests.patience import PATIENCE_S

STREAMS = 200
# Of Python's objects: asyncio's transport is among them, that of uvloop is not. Since Python 3.12
# it has an empty deque of 760 bytes.
MAX_BYTES = (3 if sys.version_info < (3, 12) else 4) * 1024


@asynccontextmanager
async def _following(server: ThreadServer, count: int) -> AsyncIterator[list[socket.socket]]:
    """Sockets of clients, as they take less memory here than asyncio's connections."""
    parked = server.purgatory.parked
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(server.address, PATIENCE_S))
            client.sendall(get("/purgatory/watch/k", "Accept: text/event-stream"))
            clients.append(client)
        await server.until_parked(parked + count)
        yield clients
    await server.until_parked(parked)


async def test_a_stream_takes_little_memory(server: ThreadServer) -> None:
    """A few KB, before it has sent a signal and after; with its client's socket."""
    async with _following(server, 20):
        gc.collect()
        tracemalloc.start()
        try:
            async with _following(server, STREAMS) as clients:
                quiet = _taken()
                await server.call(server.purgatory.fire, "k", {"status": "paid"})
                for client in clients:
                    while b"paid" not in client.recv(4096):
                        pass
                fired = _taken()
                assert is_direct(server)
        finally:
            tracemalloc.stop()
    assert quiet <= STREAMS * MAX_BYTES
    assert fired <= STREAMS * MAX_BYTES


def _taken() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
