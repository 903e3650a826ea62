"""A request that waits on a connection, with no ASGI between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class Connection(Protocol):
    """Whoever sends the answer to one request at a time."""

    def respond(self, answer: RawResponse) -> None:
        """Send the answer to the request that waits for it."""
        ...


class DirectWait(ParkedRequest):
    """Answers on the connection of its request."""

    # The connection itself: a bound method of it would be one more object for each request.
    __slots__ = ("_connection",)

    def __init__(self, request: WatchRequest, room: WaitRegistry, connection: Connection) -> None:
        """Prepare to answer `request` on `connection`."""
        ParkedRequest.__init__(self, request, room)
        self._connection = connection

    def respond(self, answer: RawResponse) -> None:
        """Send the answer."""
        self._connection.respond(answer)
