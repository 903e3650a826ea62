"""Endpoints that are ordinary functions of FastAPI's, behind our admission by the head.

FastAPI reads a body before it solves parameters and dependencies, and takes unknown and repeated
parameters. So the head is checked here first, by the annotations of the function; then the body is
read, bounded, and parsed in turns of the event loop; FastAPI does the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property, partial
from inspect import Parameter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.eager_send import send_or_give_up
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.raw_request import Access, AsgiRequest
from purgatory.fastapi.http.raw_response import CLOSE, RawResponse, encoded
from purgatory.fastapi.routing.raw_endpoint import AdmittingEndpoint, EndpointContext
from purgatory.fastapi.routing.raw_route import add_route
from purgatory.turn_budget import TurnBudget

Handler = Callable[..., Awaitable[Any]]

_NO_STORE: Final = (b"cache-control", b"no-store")


class AdmittedRequest(Request):
    """A request whose head was admitted and whose body was read, as its handler may take it."""

    def __init__(self, request: Request, raw: AsgiRequest, parsed: Any) -> None:
        """Hold `parsed`, the body of `request`, which FastAPI takes as it is."""
        super().__init__(request.scope, request.receive)
        self.raw = raw
        self._parsed = parsed

    @property
    def headers(self) -> Headers:
        """The headers, several lines of a name as one; FastAPI is to take any body for JSON."""
        if not hasattr(self, "_joined"):
            lines: dict[bytes, list[bytes]] = {}
            for name, value in self.scope["headers"]:
                lines.setdefault(name, []).append(value.strip(b" \t"))
            lines[b"content-type"] = [b"application/json"]
            self._joined = Headers(raw=[(name, b", ".join(each)) for name, each in lines.items()])
        return self._joined

    async def body(self) -> bytes:
        """Return what makes FastAPI ask for `json`."""
        return b"{}"

    async def json(self) -> Any:
        """Return the parsed body."""
        return self._parsed


_REQUEST: Final = Parameter("request", Parameter.KEYWORD_ONLY, annotation=AdmittedRequest)


class Answer(Response):
    """A response that is made already; it counts as unread until its client has read it."""

    endpoint: PlainEndpoint
    """Set by the endpoint itself."""

    def __init__(self, raw: RawResponse) -> None:
        """Send `raw`."""
        super().__init__()
        self.raw = raw

    @classmethod
    def of(cls, status: int, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Return a response with `body`, whose length is added to `headers`."""
        length = {"Content-Length": str(len(body))} if body else {}
        return cls(RawResponse(status, encoded({**headers, **length}), body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or give it up."""
        await send_or_give_up(send, self.raw, self.endpoint.context.unread)


class LaterAnswer(Answer):
    """A response that is made while FastAPI's handler, and its frames, are gone."""

    def __init__(self, request: AsgiRequest, made: Awaitable[Answer]) -> None:
        """Send what becomes of `made`, of `request`."""
        super().__init__(RawResponse.empty(204))
        self._request = request
        self._made = made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the response, and send it."""
        try:
            answer = await self._made
        except Exception as exc:
            answer = Answer(self.endpoint.error_response(self._request, exc))
        answer.endpoint = self.endpoint
        await answer(scope, receive, send)


async def joined_in_turns(rows: Iterable[bytes]) -> bytes:
    """Return encoded rows with commas between them; FastAPI would encode a thousand in one turn."""
    budget = TurnBudget()
    found: list[bytes] = []
    for row in rows:
        found.append(row)
        await budget.yield_if_spent()
    return b",".join(found)


class PlainEndpoint(AdmittingEndpoint):
    """One handler of FastAPI's. Called as an ASGI application by its RawRoute."""

    def __init__(
        self,
        context: EndpointContext,
        method: str,
        handler: Handler,
        access: Access | None,
        body: JsonBody[Any] | None,
        max_body: int,
        status_code: int,
    ) -> None:
        """Call `handler`, whose parameter `body`, if any, is of the model of `body`."""
        super().__init__(context, method, handler, access, body=body, max_body=max_body)
        self._handler = handler
        returned = self.signature.return_annotation
        is_response = isinstance(returned, type) and issubclass(returned, Response)
        self.options: dict[str, Any] = {
            "status_code": status_code,
            "response_model": None if is_response else returned,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        await self._route.app(scope, receive, send)

    # Made for the first request: FastAPI takes a millisecond for it.
    @cached_property
    def _route(self) -> APIRoute:
        handler = self._handler
        # What is in the head is parsed already, and so is the body; and that is handed over without
        # a copy, for the handler to empty.
        found = {
            name: each.replace(annotation=Annotated[Any, Body()]) if name == "body" else each
            for name, each in self.signature.parameters.items()
            if name not in self.head_names
        }
        takes_request = "request" in found
        found["request"] = _REQUEST

        async def call(request: AdmittedRequest, **values: Any) -> Any:
            if takes_request:
                values["request"] = request
            return await handler(**values, **request.raw.values)

        call.__signature__ = self.signature.replace(parameters=[*found.values()])  # type: ignore[attr-defined] # FastAPI reads it
        return _AdmittedRoute("/", call, self)

    async def respond(
        self, handle: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Return the response to a request, of `handle`, which is FastAPI's, if it is admitted."""
        raw = self.request_of(request.scope)
        refused = self.admit(raw) or await self.read_body(raw, request.receive)
        if refused is not None:
            if "expect" in request.headers and not refused.is_last:
                # What comes next may be the body that was not asked for, or another request.
                refused.add_lines(CLOSE)
            return self._sent(Answer(refused))
        try:
            parsed = None if self.body is None else await self.body.parse_in_turns(raw.body)
            return self._sent(await handle(AdmittedRequest(request, raw, parsed)))
        except Exception as exc:
            return self._sent(Answer(self.error_response(raw, exc)))

    def _sent(self, response: Response) -> Response:
        """Return `response`, not to be cached, and with the bounds of this router."""
        if not isinstance(response, Answer):
            headers = [*response.raw_headers, _NO_STORE]
            response = Answer(RawResponse(response.status_code, headers, bytes(response.body)))
        response.endpoint = self
        return response


class _AdmittedRoute(APIRoute):
    """The route of a PlainEndpoint, without what an application puts in front of it."""

    def __init__(self, path: str, handler: Handler, endpoint: PlainEndpoint) -> None:
        self._endpoint = endpoint
        super().__init__(path, handler, **endpoint.options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what responds to a request."""
        return partial(self._endpoint.respond, super().get_route_handler())


def add_handler(
    router: APIRouter,
    context: EndpointContext,
    route: str,
    handler: Handler,
    access: Access | None,
    *,
    body: JsonBody[Any] | None = None,
    max_body: int = 0,
    status_code: int = 200,
    **described: Any,
) -> PlainEndpoint:
    """Add a `route` such as "GET /keys", whose requests `handler` responds to.

    `described` is what `add_route` takes: `response_model` for a handler that returns a Response.
    """
    method, _, path = route.partition(" ")
    endpoint = PlainEndpoint(context, method, handler, access, body, max_body, status_code)
    add_route(router, path, handler, endpoint, **{**endpoint.options, **described})
    return endpoint
