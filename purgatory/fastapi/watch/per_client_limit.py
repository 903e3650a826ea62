"""The limit on requests that one client has parked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from purgatory.errors import LimitReachedError
from purgatory.fastapi.http.asgi_request import IDENTITY, AsgiRequest
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.purgatory import Purgatory

LIMIT: Final = "max_parked_per_client"
CLIENTS_STATE_KEY: Final = "purgatory_clients"
"""Where the state of an application, and of its lifespan, has the limit of all its endpoints."""

ClientOf = Callable[[HTTPConnection], str | None]
"""Names the client of a request; None if it is unknown."""


class ParkedClient:
    """The parked requests of one client, counted."""

    __slots__ = ("count", "key")

    def __init__(self, key: str) -> None:
        """Count none yet, of the client with a key of `client_key`."""
        self.key = key
        self.count = 0

    @property
    def name(self) -> str:
        """The identity or the address."""
        return self.key[1:]


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
        # Invariant: all(client.key == key and client.count > 0 for key, client in items())
        self._clients: dict[str, ParkedClient] = {}

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
        client = self._clients.get(key)
        if client is not None and client.count >= self._maximum:
            self._purgatory.count_refusal(LIMIT)
            raise LimitReachedError(
                f"this client has too many parked requests (limit {self._maximum})",
                limit=LIMIT,
                maximum=self._maximum,
            )

    def enter(self, key: str) -> ParkedClient | None:
        """Count a parked request, for `leave`; raise LimitReachedError if it is one too many."""
        self.check(key)
        if not key:
            return None
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ParkedClient(key)
        client.count += 1
        return client

    def leave(self, client: ParkedClient | None) -> None:
        """Count a parked request less, after `enter`."""
        if client is None:
            return
        client.count -= 1
        if not client.count:
            del self._clients[client.key]


def installed_limit(scope: Scope) -> PerClientLimit | None:
    """Return the limit of the purgatory that is installed in the application of a request."""
    state = getattr(scope.get("app"), "state", None)
    found = getattr(state, CLIENTS_STATE_KEY, None) or scope.get("state", {}).get(CLIENTS_STATE_KEY)
    return found if isinstance(found, PerClientLimit) else None
