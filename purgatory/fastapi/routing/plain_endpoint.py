"""Endpoints that are ordinary functions of FastAPI's, behind our admission by the head.

FastAPI reads a body before it solves parameters and dependencies, and takes unknown and repeated
parameters. So the head is checked here first, by the annotations of the function; then the body is
read, bounded, and parsed in turns of the event loop; FastAPI does the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cached_property, partial
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Body, Request, Response, params
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.eager_send import send_or_give_up
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.parameters import ParameterErrors, read_query
from purgatory.fastapi.http.problems import bad_parameter
from purgatory.fastapi.http.raw_request import Access, AsgiRequest, RawRequest, only_line
from purgatory.fastapi.http.raw_response import RawResponse, encoded
from purgatory.fastapi.http.schemas import allowed_words
from purgatory.fastapi.routing.admission import AdmittingEndpoint
from purgatory.fastapi.routing.endpoint_spec import EndpointContext
from purgatory.fastapi.routing.raw_route import DeclaredEndpoint, add_route

Handler = Callable[..., Awaitable[Any]]

_NO_STORE: Final = (b"cache-control", b"no-store")


class AdmittedRequest(Request):
    """A request whose head was admitted and whose body was read, as its handler may take it."""

    def __init__(self, request: Request, raw: AsgiRequest, parsed: Any) -> None:
        """Hold `parsed`, the body of `request`: FastAPI's models take their own instances."""
        super().__init__(request.scope, request.receive)
        self.raw = raw
        self._parsed = parsed

    @property
    def headers(self) -> Headers:
        """The headers, several lines of a name as one; FastAPI is to take any body for JSON."""
        if not hasattr(self, "_joined"):
            joined: dict[bytes, bytes] = {}
            for name, value in self.scope["headers"]:
                value = value.strip(b" \t")
                joined[name] = b"%b, %b" % (joined[name], value) if name in joined else value
            self._joined = Headers(raw=[*(joined | {b"content-type": b"application/json"}).items()])
        return self._joined

    async def body(self) -> bytes:
        """Return what makes FastAPI ask for `json`."""
        return b"{}"

    async def json(self) -> Any:
        """Return the parsed body."""
        return self._parsed


class Answer(Response):
    """A response that is made already; it counts as unread until its client has read it."""

    def __init__(self, raw: RawResponse) -> None:
        """Send `raw`."""
        super().__init__()
        self.raw = raw
        self.unread = UnreadResponses()

    @classmethod
    def of(cls, status: int, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Return a response with `body`, whose length is added to `headers`."""
        length = {"Content-Length": str(len(body))} if body else {}
        return cls(RawResponse(status, encoded({**headers, **length}), body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or give it up."""
        await send_or_give_up(send, self.raw, self.unread)


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
        self.signature = _signature(handler, body)
        self._query = _parameters(self.signature, params.Query)
        self._headers = {
            name.replace("_", "-"): annotation
            for name, annotation in _parameters(self.signature, params.Header).items()
        }
        self._query_names = frozenset(self._query)
        self._header_names = frozenset(name.encode() for name in self._headers)
        self._handler = handler
        self.options: dict[str, Any] = {
            "methods": [method],
            "status_code": status_code,
            "response_model": _model(self.signature),
        }
        super().__init__(
            context,
            method,
            access,
            self._check_head,
            path_parameter=next(iter(_parameters(self.signature, params.Path)), ""),
            body=body,
            max_body=max_body,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        await self._route.app(scope, receive, send)

    # Made for the first request: FastAPI takes a millisecond for it.
    @cached_property
    def _route(self) -> APIRoute:
        handler = self._handler

        async def call(**values: Any) -> Any:
            return await handler(**values)

        call.__signature__ = self.signature  # type: ignore[attr-defined] # FastAPI reads it
        return _AdmittedRoute("/", call, self)

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        annotations = self._query | self._headers
        return {name: TypeAdapter(annotation) for name, annotation in annotations.items()}

    async def respond(
        self, handle: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Return the response to a request, of `handle`, which is FastAPI's, if it is admitted."""
        value = request.path_params[self.path_parameter] if self.path_parameter else ""
        raw = AsgiRequest(request.scope, value)
        refused = self.admit(raw) or await self.read_body(raw, request.scope, request.receive)
        if refused is not None:
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
        response.unread = self.context.unread
        return response

    def _check_head(self, raw: RawRequest) -> None:
        """Raise one Problem for all that is wrong with the query and the headers."""
        if not raw.query_string and not raw.has_any(self._header_names):
            return
        errors = ParameterErrors()
        for name, text in read_query(raw.query_string, self._query_names, errors).items():
            errors.collect(_check, self._adapters[name], name, text)
        for header in self._headers:
            if lines := raw.headers_named(header.encode()):
                errors.collect(_check_header, self._adapters[header], header, lines)
        errors.raise_if_any()


class _AdmittedRoute(APIRoute):
    """The route of a PlainEndpoint, without what an application puts in front of it."""

    def __init__(self, path: str, handler: Handler, endpoint: PlainEndpoint) -> None:
        self._endpoint = endpoint
        super().__init__(path, handler, **endpoint.options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what responds to a request."""
        return partial(self._endpoint.respond, super().get_route_handler())


def _signature(handler: Handler, body: JsonBody[Any] | None) -> inspect.Signature:
    """Return the signature of `handler` with the model of `body`, which depends on limits."""
    signature = inspect.signature(handler, eval_str=True)
    if body is None:
        return signature
    annotation: Any = Annotated[body.annotation, Body(**body.bounds)]
    return signature.replace(
        parameters=[
            each.replace(annotation=annotation) if each.name == "body" else each
            for each in signature.parameters.values()
        ]
    )


def _model(signature: inspect.Signature) -> Any:
    """Return what a handler returns as the model of its response; None for a Response."""
    returned = signature.return_annotation
    return None if isinstance(returned, type) and issubclass(returned, Response) else returned


def _parameters(signature: inspect.Signature, kind: type[params.Param]) -> dict[str, Any]:
    """Return the annotations of the parameters that `signature` has in a place."""
    return {
        each.name: each.annotation
        for each in signature.parameters.values()
        if any(isinstance(item, kind) for item in get_args(each.annotation)[1:])
    }


# Several lines of them are one value (RFC 9110, 5.3).
_LISTS: Final = frozenset({"If-Match", "If-None-Match", "Prefer"})


def _check_header(adapter: TypeAdapter[Any], header: str, lines: list[str]) -> None:
    name = header.title()
    _check(adapter, name, ", ".join(lines) if name in _LISTS else only_line(lines, name))


def _check(adapter: TypeAdapter[Any], name: str, text: str) -> None:
    """Raise Problem unless `text` is of the type of `adapter`."""
    try:
        adapter.validate_python(text)
    except ValidationError as exc:
        words = allowed_words(adapter.json_schema())
        raise bad_parameter(name, f"{name} is {text[:64]!r}", words) from exc


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
    response_model: Any = None,
    **described: Any,
) -> PlainEndpoint:
    """Add a `route` such as "GET /keys", whose requests `handler` responds to.

    OpenAPI has the first line of its docstring as summary, and the others as description.
    `response_model` is for a handler that returns a response; `described` is what DeclaredEndpoint
    takes.
    """
    method, path = route.split(" ", 1)
    endpoint = PlainEndpoint(
        context, method, handler, access, body, max_body, status_code=status_code
    )
    summary, _, description = inspect.cleandoc(handler.__doc__ or "").partition("\n")
    declared = DeclaredEndpoint(
        handler.__name__,
        endpoint.signature,
        endpoint,
        router.prefix,
        **{
            **endpoint.options,
            "response_model": response_model or endpoint.options["response_model"],
        },
        summary=summary.rstrip("."),
        description=description.strip() or summary,
        **described,
    )
    add_route(router, path, declared)
    return endpoint
