"""A request that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from purgatory.fastapi.answer import Answer
from purgatory.fastapi.watch_request import WatchRequest
from purgatory.status import Status
from purgatory.watch_operation import WatchOperation

if TYPE_CHECKING:
    from purgatory.fastapi.waiting_room import WaitingRoom

Respond = Callable[[Answer], object]


class ParkedRequest(WatchOperation):
    """The operation behind a parked request: whoever completes it sends the answer.

    `respond` is called once, on the purgatory's thread, unless the client has gone before.
    """

    kind: ClassVar[str] = "watch"

    __slots__ = ("_request", "_respond", "_room", "client")

    def __init__(
        self,
        delay_ms: int,
        request: WatchRequest,
        room: WaitingRoom,
        respond: Respond,
    ) -> None:
        """Prepare to answer `request` through `respond`, in the words of `room`."""
        super().__init__(
            delay_ms,
            room.purgatory.signals,
            request.positions,
            needed_keys=request.needed_keys,
            min_signals=request.min_signals,
        )
        self._request = request
        self._room = room
        # Who is counted as having one request more parked; None for nobody.
        self.client: str | None = None
        self._respond: Respond | None = respond

    @property
    def wait_id(self) -> str | None:
        """The id that the client gave its wait."""
        return self._request.wait_id

    def on_complete(self) -> None:
        """Answer: fired or expired."""
        self._answer()

    def on_cancellation(self) -> None:
        """Answer: cancelled or drained; nothing, where nobody is there."""
        self._answer()

    def refuse(self, answer: Answer) -> bool:
        """End the wait with another answer; return True iff it was pending."""
        respond, self._respond = self._respond, None
        if not self._cancel(Status.CANCELLED):
            return False
        if respond is not None:
            respond(answer)
        return True

    def expire(self) -> None:
        """Answer now, as if the wait were over. Idempotent."""
        self.run()

    def leave(self) -> None:
        """End the wait without an answer: the client has gone. Idempotent."""
        self._respond = None
        self._cancel(Status.CANCELLED)

    def _answer(self) -> None:
        if self._request.wait_id is not None:
            self._room.forget(self)
        if self.client is not None:
            self._room.client_left(self.client)
        if self._respond is not None:
            self._respond(self._room.answer(self._request, self.status))
