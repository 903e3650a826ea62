"""The parked requests of a router, and those that have a Wait-Id."""

from __future__ import annotations

import logging

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.http.problem_mapping import problem_of_error, problem_of_exception
from purgatory.fastapi.http.problems import Problem, draining_problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.watch.parked_request import ParkedRequest, Registration
from purgatory.fastapi.watch.per_client_limit import ClientOf, PerClientLimit
from purgatory.fastapi.watch.request import WatchTerms
from purgatory.fastapi.watch.responses import WatchResponses
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.status import Status

logger = logging.getLogger("purgatory.fastapi")


class WaitRegistry:
    """Parks requests in a purgatory, and finds those with a Wait-Id.

    ASGI and the uvicorn protocol share one, so that a wait is the same in both.
    """

    def __init__(
        self,
        context: EndpointContext,
        settings: WaitSettings,
        client_of: ClientOf | None = None,
    ) -> None:
        """Park requests in the purgatory of `context`.

        `client_of` names clients, also those of endpoints of the application: they have one limit.
        """
        self.context = context
        self.purgatory = purgatory = context.purgatory
        self.settings = settings
        # The registration of every request without a Wait-Id whose client is not counted.
        self.unnamed = Registration(self)
        self.responses = WatchResponses(purgatory.signals, settings.max_response_bytes)
        # {wait id: the request that is parked under it, and since when}
        self._named: dict[str, tuple[ParkedRequest, int]] = {}
        shared = purgatory.shared_signals
        if shared is not None:
            shared.answers[f"cancel-wait {context.prefix}"] = self._cancel_here
            shared.answers[f"supersede-wait {context.prefix}"] = self._supersede_here
        self.clients = PerClientLimit(settings.max_parked_per_client, purgatory, client_of)
        self._has_warned_of_closed = False

    def client(self, raw: RawRequest) -> str:
        """Return the key of the client that `raw` is counted for; empty if none are counted."""
        return self.clients.key_of_raw(raw) if self.clients.is_active else ""

    def park(self, parked: ParkedRequest, client: str = "") -> None:
        """Have `parked` responded to, now or later; raise Problem if it is refused.

        Call its `abandon` when the client leaves. It is counted for `client`, unless that is empty.
        """
        purgatory = self.purgatory
        if purgatory.is_draining:
            raise draining_problem()
        if not purgatory.is_open:
            self._warn_of_closed()
            raise problem_of_error(PurgatoryClosedError())
        try:
            if purgatory.shared_signals is not None:
                purgatory.shared_signals.require_loaded()
            if parked.delay_ms == 0:
                # It polls, and does not park.
                if not parked.try_complete():
                    parked.run()
            else:
                if client:
                    self.clients.check(client)
                if not purgatory.park_operation(parked, parked.watched_keys) and client:
                    parked.count_for(self.clients.enter(client))
            wait_id = parked.wait_id
            if wait_id is not None:
                self._name(parked, wait_id)
        except PurgatoryError as exc:
            raise problem_of_error(exc) from exc

    def response(
        self, keys: tuple[str, ...], positions: tuple[int, ...], terms: WatchTerms, status: Status
    ) -> RawResponse:
        """Return the response to a wait that ended with `status`; each key has a position."""
        response = self.responses.known(keys, positions, terms, status)
        if response is not None:
            return response
        if status is Status.OUTDATED:
            return self._expired(keys, positions)
        return self.responses.response(keys, positions, terms, status)

    def failed(self, keys: tuple[str, ...], error: Exception) -> RawResponse:
        """Return the response to a wait whose response could not be made, and log why."""
        path = self.path_of(keys)
        method = "GET" if len(keys) == 1 else "POST"
        return problem_of_exception(error, method, path).response(self.context.prefix, path)

    def path_of(self, keys: tuple[str, ...]) -> str:
        """Return the path of a request that waits for `keys`, decoded."""
        path = f"{self.context.prefix}/watch"
        return f"{path}/{keys[0]}" if len(keys) == 1 else path

    def forget(self, parked: ParkedRequest, registration: Registration) -> None:
        """Forget the Wait-Id of a wait that has ended, and count it for its client no longer."""
        wait_id, client = registration.wait_id, registration.client
        if wait_id is not None and wait_id in self._named and self._named[wait_id][0] is parked:
            del self._named[wait_id]
        self.clients.leave(client)

    async def cancel(self, wait_id: str) -> None:
        """End the wait under `wait_id` with reason "cancelled"; raise Problem if there is none.

        In all processes that share signals.
        """
        count = self._cancel_here(wait_id)
        shared = self.purgatory.shared_signals
        if shared is not None and not count:
            try:
                count = sum(await shared.ask(f"cancel-wait {self.context.prefix}", wait_id))
            except PurgatoryError as exc:
                raise problem_of_error(exc) from exc
        if not count:
            raise Problem("unknown-wait", f"no request is parked under Wait-Id {_id(wait_id)}")

    def _warn_of_closed(self) -> None:
        # Once: clients try again. They are not told how the application is made.
        if self._has_warned_of_closed:
            return
        self._has_warned_of_closed = True
        logger.warning(
            "a wait was refused, as purgatory %r is not open: its lifespan is over, or did not "
            "run. Mounted applications get no lifespan: install it in the outermost application, "
            "or use it inside `async with` in a lifespan of your own",
            self.purgatory.name,
            extra={"action": "not-open"},
        )

    def _name(self, parked: ParkedRequest, wait_id: str) -> None:
        # The newer request supersedes the older one even if it ended at once.
        older = self._named.pop(wait_id, None)
        at_ms = self.purgatory.clock.wall_ms()
        if parked.status is Status.PENDING:
            self._named[wait_id] = parked, at_ms
        if older is not None:
            older[0].refuse(self._superseded(wait_id))
        shared = self.purgatory.shared_signals
        if shared is not None:
            shared.tell(f"supersede-wait {self.context.prefix}", f"{at_ms} {wait_id}")

    def _cancel_here(self, wait_id: str) -> int:
        parked = self._named.pop(wait_id, None)
        return 1 if parked is not None and parked[0].cancel() else 0

    def _supersede_here(self, argument: str) -> int:
        at_ms, _, wait_id = argument.partition(" ")
        older = self._named.get(wait_id)
        # By the clocks of the processes: a client asks again later than by what they differ.
        if older is None or not at_ms.isdecimal() or older[1] >= int(at_ms):
            return 0
        del self._named[wait_id]
        return 1 if older[0].refuse(self._superseded(wait_id)) else 0

    def _expired(self, keys: tuple[str, ...], positions: tuple[int, ...]) -> RawResponse:
        """Return the 410 of the first key whose signals are missing."""
        signals = self.purgatory.signals
        for key, position in zip(keys, positions, strict=True):
            if position < signals.earliest(key):
                try:
                    signals.position(key, signals.cursor(position))
                except PurgatoryError as exc:
                    return problem_of_error(exc).response(self.context.prefix, self.path_of((key,)))
        raise AssertionError("an outdated wait has a position before the earliest")

    def _superseded(self, name: str) -> RawResponse:
        wait_id = _id(name)
        problem = Problem(
            "superseded", f"a newer request was parked under Wait-Id {wait_id}, and waits instead"
        )
        return problem.response(self.context.prefix, f"{self.context.prefix}/waits/{wait_id}")


def _id(name: str) -> str:
    """Return the Wait-Id of a wait's name, without the owner."""
    return name.rpartition("/")[2]
