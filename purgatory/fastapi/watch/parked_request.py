"""The wait of a parked request."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.signals import WaitOperation

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class ParkedRequest(WaitOperation):
    """The wait of a request, which is responded to when it ends.

    Subclasses send the response, for a server interface, in `respond`. Call `abandon` when the
    client leaves, and `run` to end the wait early, as expired.
    """

    kind: ClassVar[str] = "watch"

    # No more than this: there is one per client, and its memory is the cost of parking.
    __slots__ = ("_registry", "client", "terms", "wait_id")

    def __init__(self, request: WatchRequest, registry: WaitRegistry) -> None:
        """Prepare to wait as `request` says, in `registry`."""
        purgatory = registry.purgatory
        # The id is the client's name for this wait.
        keys, positions, self.terms, self.wait_id = request
        delay_ms = purgatory.delay_ms(self.terms.timeout)
        condition = self.terms.condition
        WaitOperation.__init__(self, delay_ms, purgatory.signals, keys, positions, condition)
        self._registry = registry
        # The client that this request is counted for; None if clients are not counted.
        self.client: str | None = None

    def respond(self, answer: RawResponse) -> None:
        """Send the response: called once, on the purgatory's thread, unless the client has left."""
        raise NotImplementedError(f"{type(self).__name__} does not define respond()")

    def on_end(self) -> None:
        """Respond, unless the client has left or was refused."""
        if self.wait_id is not None:
            self._registry.forget(self)
        if self.client is not None:
            self._registry.leave(self.client)
        if not self.is_abandoned:
            answer = self._registry.answer(
                self.watched_keys, self.positions, self.terms, self.status
            )
            self.respond(answer)

    def refuse(self, answer: RawResponse) -> bool:
        """End the wait with an error; return True iff it was pending."""
        if not self.abandon():
            return False
        self.respond(answer)
        return True
