"""A request that waits."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.fastapi.answer import Answer
from purgatory.fastapi.watch_answer import WatchAnswers
from purgatory.fastapi.watch_request import WatchRequest
from purgatory.signals import Signals
from purgatory.status import Status
from purgatory.watch_operation import WatchOperation

Respond = Callable[[Answer], object]


class ParkedRequest(WatchOperation):
    """The operation behind a parked request: whoever completes it sends the answer.

    `respond` is called once, on the purgatory's thread, unless the client has gone before.
    """

    __slots__ = ("_answers", "_request", "_respond")

    def __init__(
        self,
        delay_ms: int,
        request: WatchRequest,
        signals: Signals,
        answers: WatchAnswers,
        respond: Respond,
    ) -> None:
        """Prepare to answer `request` through `respond`."""
        super().__init__(
            delay_ms,
            signals,
            request.positions,
            needed_keys=request.needed_keys,
            min_signals=request.min_signals,
        )
        self._request = request
        self._answers = answers
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

    def leave(self) -> None:
        """End the wait without an answer: the client has gone. Idempotent."""
        self._respond = None
        self._cancel(Status.CANCELLED)

    def _answer(self) -> None:
        if self._respond is not None:
            self._respond(self._answers.answer(self._request, self.status))
