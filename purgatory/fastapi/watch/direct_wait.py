"""Requests that are parked on a connection, without ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.connection import Responder
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class DirectWait(ParkedRequest):
    """Responds on the connection of its request."""

    # The connection itself: a bound method of it would be one more object for each request.
    __slots__ = ("_connection",)

    def __init__(
        self, request: WatchRequest, registry: WaitRegistry, connection: Responder
    ) -> None:
        """Prepare to respond to `request` on `connection`."""
        ParkedRequest.__init__(self, request, registry)
        self._connection = connection
        # Shared by all of them: a copy for each would be a twentieth of its memory.
        self._parked_in = connection.context

    @property
    def address(self) -> str | None:
        """The address at the other end of the connection."""
        return self._connection.address

    def respond(self, response: RawResponse) -> None:
        """Send the response."""
        self._connection.respond(response)
