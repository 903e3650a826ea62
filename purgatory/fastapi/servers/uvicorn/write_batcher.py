"""Responses written to the network in batches."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Transport


class WriteBatcher:
    """Writes all responses of one turn of the event loop together, at its end.

    Each write may wake a client, and on the same machine that costs as much as parking does. A
    client, or a proxy, that gets its responses together is woken once.
    """

    # Invariant: a flush is scheduled unless there is nothing to write.
    __slots__ = ("_loop", "_written")

    def __init__(self, loop: AbstractEventLoop) -> None:
        """Begin empty."""
        self._loop = loop
        self._written: list[tuple[Transport, bytes]] = []

    def write(self, transport: Transport, data: bytes) -> None:
        """Write `data` to `transport` before the event loop waits again."""
        if not self._written:
            self._loop.call_soon(self.flush)
        self._written.append((transport, data))

    def flush(self) -> None:
        """Write everything now: call it before anything else is done with a transport."""
        written, self._written = self._written, []
        for transport, data in written:
            if not transport.is_closing():
                transport.write(data)
