"""A request that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.signals import WaitOperation

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class ParkedRequest(WaitOperation):
    """The operation behind a parked request: whoever completes it sends the answer.

    Subclasses say how, for a server interface, in `respond`.
    """

    kind: ClassVar[str] = "watch"

    # No more than this: there are as many as clients, and their memory is what parking costs.
    __slots__ = ("_registry", "client", "terms", "wait_id")

    def __init__(self, request: WatchRequest, registry: WaitRegistry) -> None:
        """Prepare to answer `request` as a wait of `registry`."""
        purgatory = registry.purgatory
        # The id that the client gave it.
        keys, positions, self.terms, self.wait_id = request
        delay_ms = purgatory.delay_ms(self.terms.timeout)
        condition = self.terms.condition
        WaitOperation.__init__(self, delay_ms, purgatory.signals, keys, positions, condition)
        self._registry = registry
        # Who is counted as having one request more parked; None for nobody.
        self.client: str | None = None

    def respond(self, answer: RawResponse) -> None:
        """Send the answer: called once, on the purgatory's thread, unless the client has gone."""
        raise NotImplementedError(f"{type(self).__name__} does not define respond()")

    def on_complete(self) -> None:
        """Answer, unless nobody is there or another answer was given."""
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
        """End the wait with another answer; return True iff it was pending."""
        if not self.abandon():
            return False
        self.respond(answer)
        return True

    def expire(self) -> None:
        """Answer now, as if the wait were over. Idempotent."""
        self.run()

    def leave(self) -> None:
        """End the wait without an answer: the client has gone. Idempotent."""
        self.abandon()
