"""Where requests wait, whichever server interface they came through."""

from __future__ import annotations

from purgatory.errors import PurgatoryError
from purgatory.fastapi.answer import Answer
from purgatory.fastapi.parked_request import ParkedRequest, Respond
from purgatory.fastapi.problems import Problem, draining, problem_of
from purgatory.fastapi.watch_answer import WatchAnswers
from purgatory.fastapi.watch_request import WaitSettings, WatchRequest
from purgatory.purgatory import Purgatory
from purgatory.status import Status


class WaitingRoom:
    """Parks requests in a purgatory, and knows those that have a name.

    The router and the uvicorn protocol share one, so that a wait is the same in both.
    """

    def __init__(self, purgatory: Purgatory, prefix: str, settings: WaitSettings) -> None:
        """Park in `purgatory`; `prefix` is where its endpoints and problems are found."""
        self.purgatory = purgatory
        self.prefix = prefix
        self.settings = settings
        self._answers = WatchAnswers(purgatory.signals)
        # {wait id: the request that is parked under it}
        self._named: dict[str, ParkedRequest] = {}

    def park(self, request: WatchRequest, respond: Respond) -> ParkedRequest:
        """Answer `request` through `respond`, now or later; raise Problem where it is refused.

        Returns the wait: call `leave` when the client goes, and `forget` in the end.
        """
        purgatory = self.purgatory
        if purgatory.is_draining:
            raise draining()
        parked = ParkedRequest(
            purgatory.delay_ms(request.timeout), request, purgatory.signals, self._answers, respond
        )
        try:
            if parked.delay_ms == 0:
                # It asks, and does not park.
                if not parked.try_complete():
                    parked.run()
            elif not purgatory.watch(parked, request.positions):
                self._name(parked)
        except PurgatoryError as exc:
            raise problem_of(exc) from exc
        return parked

    def forget(self, parked: ParkedRequest) -> None:
        """Forget the name of a wait that has ended."""
        if parked.wait_id is not None and self._named.get(parked.wait_id) is parked:
            del self._named[parked.wait_id]

    def cancel(self, wait_id: str) -> None:
        """End the wait under `wait_id` with reason "cancelled"; raise Problem for none."""
        parked = self._named.pop(wait_id, None)
        if parked is None or not parked.cancel():
            raise Problem("unknown-wait", f"no request is parked under Wait-Id {wait_id}")

    def _name(self, parked: ParkedRequest) -> None:
        if parked.wait_id is None or parked.status is not Status.PENDING:
            return
        older = self._named.get(parked.wait_id)
        self._named[parked.wait_id] = parked
        if older is not None:
            older.refuse(self._superseded(parked.wait_id))

    def _superseded(self, wait_id: str) -> Answer:
        problem = Problem(
            "superseded", f"a newer request was parked under Wait-Id {wait_id}, and waits instead"
        )
        return problem.answer(self.prefix, f"{self.prefix}/waits/{wait_id}")
