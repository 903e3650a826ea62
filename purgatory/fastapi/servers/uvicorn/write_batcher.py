"""Responses written to the network in batches."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

# So many bytes are not kept for the end of the turn: very many long responses may be in one.
MAX_BATCH: Final = 256 * 1024


class WriteBatcher:
    """Writes all responses of one turn of the event loop together, at its end.

    Each write may wake a client, and on the same machine that costs as much as parking does. A
    client, or a proxy, that gets its responses together is woken once.
    """

    # Invariant: a flush is scheduled unless there is nothing to write, and _size is the sum of it.
    __slots__ = ("_before", "_context", "_loop", "_size", "_written")

    def __init__(self, loop: AbstractEventLoop, *, before: Callable[[], object]) -> None:
        """Begin empty; `before` is called before responses are written."""
        self._loop = loop
        # Not that of the first response of a turn.
        self._context = copy_context()
        self._before = before
        self._written: list[tuple[Transport, bytes]] = []
        self._size = 0

    def write(self, transport: Transport, data: bytes) -> None:
        """Write `data` to `transport` before the event loop waits again."""
        if not self._written:
            self._loop.call_soon(self.flush, context=self._context)
        self._written.append((transport, data))
        self._size += len(data)
        if self._size > MAX_BATCH:
            self.flush()

    def flush(self) -> None:
        """Write everything now: call it before anything else is done with a transport."""
        if not self._written:
            return
        self._before()
        written, self._written = self._written, []
        self._size = 0
        for transport, data in written:
            if not transport.is_closing():
                transport.write(data)
