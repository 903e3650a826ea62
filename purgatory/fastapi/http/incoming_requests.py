"""Requests that have not arrived completely: a deadline for each, a bound on the bytes of all."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from purgatory.fastapi.http.deadlines import Deadlines
from purgatory.fastapi.http.problems import Problem, retry_after

# As nginx has it for a head, and between two pieces of a body.
DEFAULT_TIMEOUT: Final = 60.0
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024


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

    # {request: bytes}, in the order of arrival. Invariant: held_bytes == sum(_sizes.values()).
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
        return len(self._sizes)

    def hold(self, request: IncomingRequest, size: int) -> None:
        """Count `size` bytes of `request`; its deadline begins with the first call.

        May refuse any request, `request` too, before it returns.
        """
        before = self._sizes.get(request)
        if before is None:
            self._begin(request)
        self._sizes[request] = size
        self.held_bytes += size - (before or 0)
        while self.held_bytes > self._max_bytes:
            oldest = next(iter(self._sizes))
            if self._sizes[oldest] == self.held_bytes:
                return
            self.release(oldest)
            oldest.refuse(self._too_many_bytes())

    def release(self, request: IncomingRequest) -> None:
        """Forget a request that is complete, or has left. Idempotent."""
        size = self._sizes.pop(request, None)
        if size is not None:
            self.held_bytes -= size
            if self._deadlines is not None:
                self._deadlines.discard(request)

    def _begin(self, request: IncomingRequest) -> None:
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._timeout, self._refuse_late)
        self._deadlines.add(request)

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
