"""A request that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class ParkedRequest(DelayedOperation):
    """The operation behind a parked request: whoever completes it sends the answer.

    Subclasses say how, for a server interface, in `respond`.
    """

    kind: ClassVar[str] = "watch"

    # No more than this: there are as many as clients, and their memory is what parking costs.
    __slots__ = (
        "_is_awaited",
        "_positions",
        "_registry",
        "client",
        "terms",
        "wait_id",
        "watched_keys",
    )

    def __init__(self, request: WatchRequest, registry: WaitRegistry) -> None:
        """Prepare to answer `request` as a wait of `registry`."""
        DelayedOperation.__init__(self, registry.purgatory.delay_ms(request.terms.timeout))
        # Its keys, for the answer, when it watches them no more; the id that the client gave it.
        self.watched_keys, self._positions, self.terms, self.wait_id = request
        self._registry = registry
        # Who is counted as having one request more parked; None for nobody.
        self.client: str | None = None
        # False where the answer comes from elsewhere, or there is nobody to answer.
        self._is_awaited = True

    def respond(self, answer: RawResponse) -> None:
        """Send the answer: called once, on the purgatory's thread, unless the client has gone."""
        raise NotImplementedError(f"{type(self).__name__} does not define respond()")

    def try_complete(self) -> bool:
        """Complete if enough keys have enough signals after their positions."""
        terms, keys, positions = self.terms, self.watched_keys, self._positions
        has_after = self._registry.purgatory.signals.has_after
        if len(keys) == 1:
            # As below, for most: this is asked thrice of each.
            return has_after(keys[0], positions[0], terms.min_signals) and self.force_complete()
        needed = terms.needed_keys
        for key, position in zip(keys, positions, strict=True):
            if has_after(key, position, terms.min_signals):
                needed -= 1
                if needed <= 0:
                    return self.force_complete()
        return False

    def on_complete(self) -> None:
        """Answer: fired or expired."""
        self._answer()

    def on_cancellation(self) -> None:
        """Answer: cancelled or drained; nothing, where nobody is there."""
        self._answer()

    def refuse(self, answer: RawResponse) -> bool:
        """End the wait with another answer; return True iff it was pending."""
        self._is_awaited = False
        if not self._cancel(Status.CANCELLED):
            return False
        self.respond(answer)
        return True

    def expire(self) -> None:
        """Answer now, as if the wait were over. Idempotent."""
        self.run()

    def leave(self) -> None:
        """End the wait without an answer: the client has gone. Idempotent."""
        self._is_awaited = False
        self._cancel(Status.CANCELLED)

    def _answer(self) -> None:
        if self.wait_id is not None:
            self._registry.forget(self)
        if self.client is not None:
            self._registry.leave(self.client)
        if self._is_awaited:
            answer = self._registry.answer(
                self.watched_keys, self._positions, self.terms, self.status
            )
            self.respond(answer)
