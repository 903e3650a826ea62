"""The settings that all endpoints of one router share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from purgatory.fastapi.http.authorization import ALLOW_ANYONE, Authenticate
from purgatory.fastapi.http.bounds.incoming_requests import IncomingRequests
from purgatory.fastapi.http.bounds.unread_responses import UnreadResponses
from purgatory.purgatory import Purgatory

DEFAULT_PREFIX: Final = "/purgatory"


@dataclass(frozen=True, slots=True)
class EndpointContext:
    """The purgatory that the endpoints of a router serve, their address and access check."""

    purgatory: Purgatory
    prefix: str = DEFAULT_PREFIX
    """The path before every endpoint and every problem type."""
    authenticate: Authenticate = ALLOW_ANYONE
    """Returns the permit of a request; raises Problem 401."""
    bypass_middleware: bool = False
    """True iff requests may be served without the application's middleware."""
    incoming: IncomingRequests = field(default_factory=IncomingRequests)
    """The requests of all these endpoints that have not arrived completely."""
    unread: UnreadResponses = field(default_factory=UnreadResponses)
    """The responses of all these endpoints that have not been sent completely."""
