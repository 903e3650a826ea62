"""Requests that are arriving: refused if they take too long, or if all hold too many bytes."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Final, Protocol

from purgatory.fastapi.http.bounds.byte_budget import DEFAULT_TIMEOUT, ByteBudget
from purgatory.fastapi.http.problems import Problem, draining_problem
from purgatory.fastapi.http.retry_after import retry_after

DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024
# What is on its way when the process is told to stop arrives within this time, and what does not
# must not delay its exit.
DRAIN_TIMEOUT: Final = 0.5

INCOMING_STATE_KEY: Final = "purgatory_incoming"
"""Key of IncomingRequests in the state of the lifespan, for servers that read heads."""


class IncomingRequest(Protocol):
    """A request that is being received."""

    def refuse(self, problem: Problem) -> None:
        """Respond with `problem`, and close the connection."""
        ...


class IncomingRequests(ByteBudget[IncomingRequest]):
    """Refuses incomplete requests: after `timeout` seconds, or while all hold over `max_bytes`.

    One that alone holds all of the bytes is bounded by its endpoint.
    """

    __slots__ = ()

    def __init__(
        self, timeout: float = DEFAULT_TIMEOUT, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Begin empty; `timeout` is in seconds, from the first byte to the last."""
        super().__init__(timeout, max_bytes)

    def begin_drain(self) -> None:
        """Refuse what is incomplete after DRAIN_TIMEOUT seconds: a server waits for all of it."""
        loop = asyncio.get_running_loop()
        loop.call_later(DRAIN_TIMEOUT, self._refuse_all, context=Context())

    def _refuse_all(self) -> None:
        for item in self._items():
            self.release(item)
            item.refuse(draining_problem("takes no more requests"))

    def _on_timeout(self, item: IncomingRequest) -> None:
        self.release(item)
        item.refuse(
            Problem(
                "request-timeout",
                f"the request was not complete after {self._timeout:g} seconds: send all of it "
                "within that time",
                headers={"Connection": "close"},
                limit=self._timeout,
            )
        )

    def _evict(self, item: IncomingRequest) -> None:
        item.refuse(
            Problem(
                "receiving-full",
                f"incomplete requests hold more than {self._max_bytes} bytes, and this one is the "
                "oldest: send it again, all at once",
                headers={**retry_after(), "Connection": "close"},
                limit="max_incomplete_bytes",
                maximum=self._max_bytes,
            )
        )
