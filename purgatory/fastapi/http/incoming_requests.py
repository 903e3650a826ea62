"""Requests that have not arrived completely: a deadline for each, a bound on the bytes of all."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from purgatory.fastapi.http.deadlines import Deadlines
from purgatory.fastapi.http.problems import Problem, retry_after

# As nginx has it for a head, and between two pieces of a body.
DEFAULT_TIMEOUT: Final = 60.0
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024

STATE_KEY: Final = "purgatory_incoming"
"""Those of the first router in the state of the lifespan, for servers that read heads."""


class IncomingRequest(Protocol):
    """A request that is being received."""

    def refuse(self, problem: Problem) -> None:
        """Respond with `problem`, and close the connection."""
        ...


class IncomingRequests:
    """Refuses incomplete requests: after `timeout` seconds, or while all hold over `max_bytes`.

    Beyond `max_bytes`, the oldest are refused. A client that means well has sent its request within
    moments; one that sends halves of requests to fill the memory holds the oldest ones, and cannot
    keep others out. One that alone holds all of the bytes is bounded by its endpoint.
    """

    # {request: bytes} of those that hold any, the oldest first: only they can free memory.
    # Invariant: held_bytes == sum(_sizes.values()) and all(_sizes.values()).
    __slots__ = ("_deadlines", "_max_bytes", "_sizes", "_timeout", "held_bytes")

    def __init__(
        self, timeout: float = DEFAULT_TIMEOUT, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Begin empty; `timeout` is in seconds, from the first byte to the last."""
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._sizes: dict[IncomingRequest, int] = {}
        self._deadlines: Deadlines[IncomingRequest] | None = None
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of incomplete requests."""
        return 0 if self._deadlines is None else len(self._deadlines)

    def hold(self, request: IncomingRequest, size: int) -> None:
        """Count `size` bytes of `request`; its deadline begins with the first call.

        May refuse any request, `request` too, before it returns.
        """
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._timeout, self._refuse_late)
        if request not in self._deadlines:
            self._deadlines.add(request)
        self._count(request, size)
        if self.held_bytes > self._max_bytes:
            self._make_room()

    def release(self, request: IncomingRequest) -> None:
        """Forget a request that is complete, or has left. Idempotent."""
        self._count(request, 0)
        if self._deadlines is not None:
            self._deadlines.discard(request)

    def _count(self, request: IncomingRequest, size: int) -> None:
        self.held_bytes += size - self._sizes.get(request, 0)
        if size:
            self._sizes[request] = size
        else:
            self._sizes.pop(request, None)

    def _make_room(self) -> None:
        left = self.held_bytes
        refused: list[IncomingRequest] = []
        for request, size in self._sizes.items():
            if left <= self._max_bytes or left == size:
                break
            refused.append(request)
            left -= size
        # All of them first: a connection that is refused is held again, while it lingers.
        for request in refused:
            self.release(request)
        for request in refused:
            request.refuse(self._too_many_bytes())

    def _refuse_late(self, request: IncomingRequest) -> None:
        self.release(request)
        request.refuse(
            Problem(
                "request-timeout",
                f"the request was not complete after {self._timeout:g} seconds: send all of it "
                "within that time",
                headers={"Connection": "close"},
                limit=self._timeout,
            )
        )

    def _too_many_bytes(self) -> Problem:
        return Problem(
            "receiving-full",
            f"incomplete requests hold more than {self._max_bytes} bytes, and this one is the "
            "oldest: send it again, all at once",
            headers={**retry_after(), "Connection": "close"},
            limit="max_incomplete_bytes",
            maximum=self._max_bytes,
        )
