"""The interface of a connection that an endpoint responds on without ASGI."""

from __future__ import annotations

from typing import Protocol

from purgatory.fastapi.http.raw_response import RawResponse


class Connection(Protocol):
    """Serves one request at a time."""

    def respond(self, response: RawResponse) -> None:
        """Send the response to the current request."""
        ...
