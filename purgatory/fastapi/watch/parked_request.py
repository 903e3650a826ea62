"""The wait of a parked request."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.per_client_limit import ParkedClient
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.signals import WaitOperation

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class Registration:
    """How a registry knows a parked request: by its Wait-Id, and by the client it is counted for.

    Both are None for most requests, which share one object.
    """

    __slots__ = ("client", "registry", "wait_id")

    def __init__(
        self,
        registry: WaitRegistry,
        wait_id: str | None = None,
        client: ParkedClient | None = None,
    ) -> None:
        """Make the registration of one request or, without an id and a client, of any."""
        self.registry = registry
        self.wait_id = wait_id
        self.client = client


class ParkedRequest(WaitOperation):
    """The wait of a request, which is responded to when it ends.

    Subclasses send the response, for a server interface, in `respond`. Call `abandon` when the
    client leaves, and `run` to end the wait early, as expired.
    """

    kind: ClassVar[str] = "watch"

    # No more than this: there is one per client, and its memory is the cost of parking.
    __slots__ = ("_registration", "terms")

    def __init__(self, request: WatchRequest, registry: WaitRegistry) -> None:
        """Prepare to wait as `request` says, in `registry`."""
        purgatory = registry.purgatory
        keys, positions, self.terms, wait_id = request
        delay_ms = purgatory.delay_ms(self.terms.timeout)
        condition = self.terms.condition
        WaitOperation.__init__(self, delay_ms, purgatory.signals, keys, positions, condition)
        self._registration: Registration = (
            registry.unnamed if wait_id is None else Registration(registry, wait_id)
        )

    @property
    def wait_id(self) -> str | None:
        """The client's name for this wait, if it gave one."""
        return self._registration.wait_id

    @property
    def client(self) -> str | None:
        """The client as far as it is known: its identity, or the address of its connection.

        The identity is kept only where it is needed, for a Wait-Id or a limit per client.
        """
        registration = self._registration
        owner = (registration.wait_id or "").rpartition("/")[0]
        counted = registration.client
        return (counted and counted.name) or owner or self.address

    @property
    def address(self) -> str | None:
        """The address of the client's connection, or of the proxy's; None if unknown."""
        return None

    def count_for(self, client: ParkedClient | None) -> None:
        """Count this request for `client` until it ends."""
        registration = self._registration
        self._registration = Registration(registration.registry, registration.wait_id, client)

    def respond(self, response: RawResponse) -> None:
        """Send the response: called once, on the purgatory's thread, unless the client has left."""
        raise NotImplementedError(f"{type(self).__name__} does not define respond()")

    def on_complete(self) -> None:
        """Respond, unless the client has left or was refused."""
        registration = self._registration
        registry = registration.registry
        if registration is not registry.unnamed:
            registry.forget(self, registration)
        if self.is_abandoned:
            return
        try:
            keys, positions = self.watched_keys, self.positions
            response = registry.response(keys, positions, self.terms, self.status)
        except Exception as exc:
            # A fault of ours: the client gets a 500, as for any other, instead of no response.
            response = registry.failed(keys, exc)
        self.respond(response)

    def refuse(self, response: RawResponse) -> bool:
        """End the wait with an error; return True iff it was pending."""
        if self._parked_in is not None:
            return bool(self._in_own_context(self.refuse, response))
        if not self.abandon():
            return False
        self.respond(response)
        return True
