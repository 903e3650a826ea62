"""Settings of waits over HTTP, and the limit on requests that one client has parked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import intern
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from purgatory.errors import LimitReachedError, check_numbers
from purgatory.fastapi.http.bounds import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_UNREAD_BYTES,
    DEFAULT_TIMEOUT,
)
from purgatory.fastapi.http.requests import IDENTITY, AsgiRequest, RawRequest
from purgatory.purgatory import Purgatory
from purgatory.timer.clock import SecondsField

DEFAULT_WAIT: Final = 25.0


# Without slots, for SecondsField.
@dataclass(frozen=True, kw_only=True)
class WaitSettings:
    """Bounds on requests over HTTP: how long they are parked or received, and how many."""

    default_wait: SecondsField = SecondsField(DEFAULT_WAIT)
    """Seconds, if the client names none: 25, or `max_wait` if that is less."""
    max_wait: SecondsField = SecondsField(55.0)
    max_stream: SecondsField = SecondsField(3600.0)
    """Seconds until a stream of events ends; its client reconnects, and is authorized again."""
    heartbeat: SecondsField = SecondsField(15.0)
    """Seconds between comments in a stream: less than the idle timeouts of proxies."""
    max_parked_per_client: int = 100_000
    """Parked requests of one client: a token or identity, or else an address.

    With `install`, also those to endpoints of the application, whose clients `client=` names.
    """
    request_timeout: SecondsField = SecondsField(DEFAULT_TIMEOUT)
    """Seconds from the first byte of a request to its last; later ones are refused (408).

    Applies to bodies, and with `ParkingProtocol` to the heads of all requests; of several routers,
    the one that is included first decides for heads. So it is with `max_incomplete_bytes`.
    """
    max_incomplete_bytes: int = DEFAULT_MAX_BYTES
    """Bytes of all incomplete requests together; beyond, the oldest of them are refused (503)."""
    max_response_bytes: int = 1024 * 1024
    """Bytes of signals in the response to a wait, about; there is at least one signal. `more` says
    that others follow, after the cursor of the response."""
    response_timeout: SecondsField = SecondsField(DEFAULT_TIMEOUT)
    """Seconds in which a client must read some of its response, or its connection is closed.

    Applies to long responses of this router, and with `ParkingProtocol` to all responses, as
    `request_timeout` to heads. So it is with `max_unread_bytes`.
    """
    max_unread_bytes: int = DEFAULT_MAX_UNREAD_BYTES
    """Bytes of all responses that are not read yet; beyond, the oldest connections are closed."""

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= default_wait <= max_wait, TypeError for no number."""
        check_numbers(self)
        if self.default_wait == DEFAULT_WAIT and self.max_wait >= 0:
            object.__setattr__(self, "default_wait", min(DEFAULT_WAIT, self.max_wait))
        if not 0 <= self.default_wait <= self.max_wait:
            raise ValueError(
                f"default_wait is {self.default_wait!r} and max_wait {self.max_wait!r}; needed: "
                "0 <= default_wait <= max_wait; lower default_wait or raise max_wait"
            )
        for name in ("heartbeat", "max_stream", "request_timeout", "response_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; needed: a number of seconds above 0"
                )
        counts = "max_incomplete_bytes", "max_response_bytes", "max_unread_bytes"
        for name in ("max_parked_per_client", *counts):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; the minimum is 1")


LIMIT: Final = "max_parked_per_client"
CLIENTS_STATE_KEY: Final = "purgatory_clients"
"""Where the state of an application, and of its lifespan, has the limit of all its endpoints."""

ClientOf = Callable[[HTTPConnection], str | None]
"""Names the client of a request; None if it is unknown."""


def client_key(identity: str | None, address: str) -> str:
    """Return a text for the client by its identity, or else its address; empty if unknown.

    An identity that looks like an address is another client.
    """
    if identity:
        return f"i{identity}"
    return f"a{address}" if address else ""


class PerClientLimit:
    """Counts the parked requests of each client; the unknown client is not counted."""

    def __init__(
        self, maximum: int, purgatory: Purgatory, client_of: ClientOf | None = None
    ) -> None:
        """Allow `maximum` requests per client; count refusals in the statistics of `purgatory`."""
        self._maximum = maximum
        self._purgatory = purgatory
        self._client_of = client_of
        # Otherwise the limit on all of them together is enough.
        self.is_active: bool = maximum < purgatory.limits.max_parked
        self.needs_scope = self.is_active and client_of is not None
        """True iff the application's function is called for each request, with its ASGI scope."""
        # Invariant: all(count > 0 for count in _counts.values())
        self._counts: dict[str, int] = {}

    def key_of(self, scope: Scope) -> str:
        """Return the key of the client of a request to the application; empty if not counted.

        Raises TypeError if the application's function returns no string.
        """
        return self._named(scope, scope.get(IDENTITY)) if self.is_active else ""

    def key_of_raw(self, raw: RawRequest) -> str:
        """Return the key of the client of a request to the router, also if it is not counted.

        Raises TypeError as `key_of`.
        """
        identity = raw.permit.identity
        if isinstance(raw, AsgiRequest):
            return self._named(raw.scope, identity)
        return client_key(identity, raw.client)

    def _named(self, scope: Scope, identity: str | None) -> str:
        if self._client_of is not None:
            named = self._client_of(HTTPConnection(scope))
            if not isinstance(named, str | None):
                raise TypeError(
                    f"client returned a {type(named).__qualname__}: return a string, such as "
                    "str(user.id), or None"
                )
            identity = named or identity
        return client_key(identity, (scope.get("client") or ("",))[0])

    def check(self, key: str) -> None:
        """Raise LimitReachedError if a client may not park another request."""
        if self._counts.get(key, 0) >= self._maximum:
            self._purgatory.count_refusal(LIMIT)
            raise LimitReachedError(
                f"this client has too many parked requests (limit {self._maximum})",
                limit=LIMIT,
                maximum=self._maximum,
            )

    def enter(self, key: str) -> str:
        """Count a parked request, for `leave`, and return the key of its client.

        Raises LimitReachedError if it is one too many. The unknown client is not counted.
        """
        self.check(key)
        if key:
            # All requests of a client keep one text.
            key = intern(key)
            self._counts[key] = self._counts.get(key, 0) + 1
        return key

    def leave(self, key: str) -> None:
        """Count a parked request less, after `enter`."""
        if key:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def installed_limit(scope: Scope) -> PerClientLimit | None:
    """Return the limit of the purgatory that is installed in the application of a request."""
    state = getattr(scope.get("app"), "state", None)
    found = getattr(state, CLIENTS_STATE_KEY, None) or scope.get("state", {}).get(CLIENTS_STATE_KEY)
    return found if isinstance(found, PerClientLimit) else None
