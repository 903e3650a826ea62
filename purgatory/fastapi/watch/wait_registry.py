"""Where requests wait, whichever server interface they came through."""

from __future__ import annotations

from purgatory.errors import LimitReachedError, PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.http.problems import Problem, draining_problem, problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.per_client_limit import PerClientLimit
from purgatory.fastapi.watch.request import WaitSettings, WatchTerms
from purgatory.fastapi.watch.responses import WatchResponses
from purgatory.status import Status


class WaitRegistry:
    """Parks requests in a purgatory, and knows those that have a name.

    The router and the uvicorn protocol share one, so that a wait is the same in both.
    """

    def __init__(self, context: EndpointContext, settings: WaitSettings) -> None:
        """Park requests in the purgatory of `context`."""
        self.context = context
        self.purgatory = purgatory = context.purgatory
        self.settings = settings
        self._answers = WatchResponses(purgatory.signals)
        # {wait id: the request that is parked under it}
        self._named: dict[str, ParkedRequest] = {}
        # Clients are counted where their bound is lower than that on all of them together.
        self.counts_clients: bool = settings.max_parked_per_client < purgatory.limits.max_parked
        self._clients = PerClientLimit(settings.max_parked_per_client, purgatory)

    def client(self, raw: RawRequest) -> str:
        """Return who asks, as far as the bound for each client needs to know."""
        return (raw.permit.identity or raw.client) if self.counts_clients else ""

    def park(self, parked: ParkedRequest, client: str = "") -> None:
        """Have a request answered, now or later; raise Problem where it is refused.

        Call its `leave` when the client goes. `client` is who asks; the empty one is not counted.
        """
        purgatory = self.purgatory
        if purgatory.is_draining:
            raise draining_problem()
        if not purgatory.is_open:
            raise problem_of_error(PurgatoryClosedError())
        try:
            if parked.delay_ms == 0:
                # It asks, and does not park.
                if not parked.try_complete():
                    parked.run()
            else:
                if client:
                    self._clients.check(client)
                if not purgatory.watch(parked, parked.watched_keys) and client:
                    parked.client = client
                    self._clients.enter(client)
            if parked.wait_id is not None:
                self._name(parked, parked.wait_id)
        except PurgatoryError as exc:
            raise problem_of_error(exc) from exc

    def answer(
        self, keys: tuple[str, ...], positions: tuple[int, ...], terms: WatchTerms, status: Status
    ) -> RawResponse:
        """Return the answer to a wait that ended with `status`: 410 where a signal is gone."""
        answer = self._answers.known(keys, positions, terms, status)
        if answer is not None:
            return answer
        if status is Status.FIRED or status is Status.EXPIRED:
            signals = self.purgatory.signals
            # Not zip, which takes longer for the one key that there is as a rule.
            for index, key in enumerate(keys):
                if positions[index] < signals.earliest(key):
                    return self._expired(key, positions[index])
        return self._answers.answer(keys, positions, terms, status)

    def enter(self, client: str) -> None:
        """Count one request more that `client` has parked, by other means than `park`.

        Raises Problem where it has as many as it may; `leave` ends it. The empty one is not
        counted.
        """
        try:
            self._clients.enter(client)
        except LimitReachedError as exc:
            raise problem_of_error(exc) from exc

    def leave(self, client: str) -> None:
        """Count one request less that `client` has parked."""
        self._clients.leave(client)

    def forget(self, parked: ParkedRequest) -> None:
        """Forget the name of a wait that has ended."""
        if parked.wait_id is not None and self._named.get(parked.wait_id) is parked:
            del self._named[parked.wait_id]

    def cancel(self, wait_id: str) -> None:
        """End the wait under `wait_id` with reason "cancelled"; raise Problem for none."""
        parked = self._named.pop(wait_id, None)
        if parked is None or not parked.cancel():
            raise Problem("unknown-wait", f"no request is parked under Wait-Id {_id(wait_id)}")

    def _name(self, parked: ParkedRequest, wait_id: str) -> None:
        # The older one is no longer waited for, even where the newer one was answered at once.
        older = self._named.pop(wait_id, None)
        if parked.status is Status.PENDING:
            self._named[wait_id] = parked
        if older is not None:
            older.refuse(self._superseded(wait_id))

    def _expired(self, key: str, position: int) -> RawResponse:
        signals = self.purgatory.signals
        try:
            signals.position(key, signals.cursor(position))
        except PurgatoryError as exc:
            return problem_of_error(exc).response(
                self.context.prefix, f"{self.context.prefix}/watch/{key}"
            )
        raise AssertionError("a position before the earliest has an expired cursor")

    def _superseded(self, name: str) -> RawResponse:
        wait_id = _id(name)
        problem = Problem(
            "superseded", f"a newer request was parked under Wait-Id {wait_id}, and waits instead"
        )
        return problem.response(self.context.prefix, f"{self.context.prefix}/waits/{wait_id}")


def _id(name: str) -> str:
    """Return the Wait-Id in a wait's name, without whose it is."""
    return name.rpartition("/")[2]
