"""Checks of a request before its body is read."""

from __future__ import annotations

from starlette.types import Receive, Scope

from purgatory.errors import PurgatoryClosedError
from purgatory.fastapi.access.content_headers import check_content
from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.bodies.request_body import body_too_large, read_body
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec


class AdmittingEndpoint:
    """An endpoint that refuses requests by their head alone, whatever the server interface."""

    def __init__(self, context: EndpointContext, spec: EndpointSpec) -> None:
        """Serve what `spec` declares."""
        self.context = context
        self._method = spec.method
        self.path_parameter = spec.path_parameter
        self.max_body = spec.max_body
        self._action = spec.action
        self._parameters = spec.parameters
        self._takes_content = spec.takes_content

    def admit(self, raw: RawRequest) -> RawResponse | None:
        """Set the permit of a request; return the response if it is refused."""
        try:
            if self._action is not None:
                raw.permit = self.context.authenticate(raw)
            if self._takes_content:
                check_content(raw)
        except Exception as exc:
            return self.error_response(raw, exc)
        return None

    def admit_body(self, raw: RawRequest, size: int) -> RawResponse | None:
        """Return the response if an admitted request, with a body of `size` bytes, is refused.

        The handler checks the same, and what is in the body, once that has been read.
        """
        try:
            if size > self.max_body:
                raise body_too_large(self.max_body)
            if self._action is not None:
                raw.permit.check(self._access(raw, self._action))
            self._parameters.parse(raw)
            if self.max_body and not self.context.purgatory.is_open:
                # Nothing drains it, either: a client that sends half a body would delay the exit.
                raise PurgatoryClosedError
        except Exception as exc:
            return self.error_response(raw, exc)
        return None

    async def read_body(
        self, raw: RawRequest, scope: Scope, receive: Receive
    ) -> RawResponse | None:
        """Read the body of an admitted request; return the response if it is refused."""
        refused = self.admit_body(raw, 0)
        if refused is None:
            try:
                raw.body = await read_body(scope, receive, self.max_body, self.context.incoming)
            except Problem as problem:
                return self.error_response(raw, problem)
        return refused

    def error_response(self, raw: RawRequest, error: Exception) -> RawResponse:
        """Return the response to a request that failed with `error`."""
        problem = problem_of_exception(error, self._method, raw.path)
        return problem.response(self.context.prefix, raw.path)

    def _access(self, raw: RawRequest, action: Action) -> Access:
        if self.path_parameter == "key":
            return Access(action, raw.key())
        # Without a key: any scope of that action.
        return Access(action)
