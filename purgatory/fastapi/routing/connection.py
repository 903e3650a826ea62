"""The interface of a connection that an endpoint responds on without ASGI."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from purgatory.fastapi.http.raw_response import RawResponse


class Responder(Protocol):
    """What a response to the current request is given to."""

    @property
    def address(self) -> str | None:
        """The address of the other end; None if unknown."""
        ...

    @property
    def context(self) -> Context:
        """The context (`contextvars`) of which each request gets a copy."""
        ...

    def respond(self, response: RawResponse) -> None:
        """Send the response to the current request."""
        ...


class Connection(Responder, Protocol):
    """Serves one request at a time, whose response may be a stream."""

    def begin_stream(
        self, head: RawResponse, chunked_head: RawResponse, on_readable: Callable[[], object]
    ) -> None:
        """Send the head of a response whose body comes in pieces, in chunks if that is possible.

        `on_readable` is called when the client has read what was sent, after `is_write_paused`.
        """
        ...

    @property
    def is_write_paused(self) -> bool:
        """True while the client has not read what was sent: do not send more."""
        ...

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body, which is not empty."""
        ...

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body, which is not empty: the response is complete."""
        ...

    def give_up(self) -> None:
        """Disconnect."""
        ...
