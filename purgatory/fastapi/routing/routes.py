"""Routes of FastAPI's whose requests go to our endpoints, and what these read from its insides.

The only user of these private names: `Request._body`, in which Starlette caches a body;
`Request._stream_consumed`; `Request._send`; and entries of FastAPI's in a scope: the exit stacks of
dependencies, and how the router of a route was included. Without the first two, a body is read from
the connection; without the next two, streams that park fail on a drain. Without the last,
dependencies given at `include_router` would be skipped, and with them perhaps an authorization:
`require_effective_routes` refuses to go on.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import lru_cache, partial
from threading import RLock
from typing import Any, Final

import fastapi
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.http.asgi import send_response
from purgatory.fastapi.http.json_bodies import JsonBody, ProblemDetails
from purgatory.fastapi.http.requests import Access
from purgatory.fastapi.http.responses import KINDS, MEDIA_TYPE, Problem
from purgatory.fastapi.routing.endpoints import (
    DEFAULT_PREFIX,
    AdmittingEndpoint,
    EndpointContext,
    PlainEndpoint,
)

_FUNCTION_STACK: Final = "fastapi_function_astack"


def cached_body(request: Request) -> bytes | None:
    """Return the body that was read through `request`; None if none was."""
    body: bytes | None = getattr(request, "_body", None)
    return body


def cache_body(request: Request, body: bytes) -> None:
    """Have `request.body()` return `body` without reading."""
    request._body = body


def is_body_read(request: Request) -> bool:
    """Return True iff the body was read through `request`, to its end."""
    return cached_body(request) is not None or getattr(request, "_stream_consumed", False)


def on_endpoint_end(scope: Scope, callback: Callable[[], object]) -> None:
    """Call `callback` once the endpoint has returned, before its response is sent."""
    stack = scope.get(_FUNCTION_STACK)
    if isinstance(stack, AsyncExitStack):
        stack.callback(callback)


async def end_response(request: Request) -> bool:
    """End the body of the response that is being sent; return True iff that was possible."""
    try:
        await request._send({"type": "http.response.body", "body": b"", "more_body": False})
    except Exception:
        # Servers raise different errors if it has not begun, or has ended.
        return False
    return True


def effective_route(scope: Scope) -> Any | None:
    """Return the route of `scope` as it is after all inclusions of routers; None if none matched.

    It has the path and the dependencies of every router around it.
    """
    route = scope.get("route")
    context = scope.get("fastapi", {}).get("effective_route_context")
    # In a mounted application it may still be that of the mount, without these dependencies.
    return context if getattr(context, "original_route", None) is route else route


@lru_cache(maxsize=1)
def require_effective_routes() -> None:
    """Raise RuntimeError if `effective_route` misses the dependencies of an included router."""
    found = _dependencies_seen()
    if found != 1:
        raise RuntimeError(
            f"FastAPI {fastapi.__version__} does not say how a router was included ({found} of 1 "
            "dependencies seen): authorization given at include_router would be skipped; install "
            "a version of FastAPI that this version of fastapi-purgatory supports"
        )


def _dependencies_seen() -> int:
    """Return how many dependencies a route of a small application sees; 1 is right."""
    seen: list[int] = []

    class ProbeRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(len(getattr(effective_route(scope), "dependencies", ())))

    router = APIRouter(route_class=ProbeRoute)
    router.add_api_route("/probe", _nothing)
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(_nothing)])
    serve_probe(app.router, app)
    return sum(seen)


def serve_probe(serving: Any, app: Any) -> None:
    """Have `serving` serve a GET of `/probe` to `app`, in which nothing waits, in this step.

    Without the event loop, which may not be there yet.
    """
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/probe",
        "raw_path": b"/probe",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "app": app,
    }
    call = serving(scope, _no_message, drop_message)
    try:
        call.send(None)
    except StopIteration:
        pass
    finally:
        call.close()


async def _nothing() -> None:
    pass


async def _no_message() -> Any:
    raise AssertionError("the probe reads no message")


async def drop_message(message: Any) -> None:
    """Be the `send` of a probe."""


Responses = dict[int | str, dict[str, Any]]

_PROBLEM_SCHEMA: Final = ProblemDetails.model_json_schema()
_EXAMPLE_PATH: Final = f"{DEFAULT_PREFIX}/..."


def response_header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    """Describe a header of a response; `kind` is a JSON type."""
    return {name: {"description": description, "schema": {"type": kind}}}


RETRY_AFTER: Final = response_header("Retry-After", "Seconds; jittered.", "integer")


def problem_responses(*slugs: str) -> Responses:
    """Return OpenAPI responses for kinds of problems: their statuses, and `default` for the body.

    The schema and an example stand once, under `default`: repeated for each status, they make a
    page of Swagger UI several screens long.
    """
    responses: Responses = {}
    for kind in (KINDS[slug] for slug in slugs):
        found = responses.setdefault(kind.status, {"description": "", "content": {MEDIA_TYPE: {}}})
        # Markdown.
        found["description"] += f"- `{kind.slug}`: {kind.title}.\n"
        if kind.status in (429, 503):
            found["headers"] = RETRY_AFTER
    example = Problem(slugs[0], KINDS[slugs[0]].remedy).response(DEFAULT_PREFIX, _EXAMPLE_PATH)
    responses["default"] = {
        "description": "The body of every error (RFC 9457). `type` is the URL of a page about it.",
        # Not a model: FastAPI would declare it as application/json.
        "content": {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA, "example": json.loads(example.body)}},
    }
    return responses


def admission_problems(endpoint: AdmittingEndpoint) -> list[str]:
    """Return the kinds of problems of requests that are not admitted, or whose body is not read."""
    found = [] if endpoint.access is None else ["unauthorized", "forbidden"]
    found.append("bad-parameter")
    if endpoint.method in ("PATCH", "POST"):
        found.append("unsupported-media-type")
    if endpoint.body is not None:
        found.append("bad-json")
    if endpoint.max_body:
        found += ("body-too-large", "request-timeout", "receiving-full")
    return found


class _Delegated(Response):
    """The response that `raw` sends."""

    def __init__(self, raw: ASGIApp, request: Request) -> None:
        super().__init__()
        self._raw = raw
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._raw(scope, self._receive_again(receive), send)

    def _receive_again(self, receive: Receive) -> Receive:
        """Return `receive`, preceded by the body if a dependency has read it."""
        if not is_body_read(self._request):
            return receive
        body = cached_body(self._request) or b""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return receive_again


_BUILDING: Final = RLock()


class RawRoute(APIRoute):
    """A route whose requests go to its endpoint, past FastAPI's handling.

    FastAPI makes a parser for each parameter and model of a route, and again where its router is
    included: most of a millisecond each, for every application of a test suite. Here these are for
    OpenAPI alone, so they are built with the first attribute that is not there yet, on any thread.
    """

    # {id of an inclusion of the router: the inclusion, the endpoint behind its dependencies}
    _guarded: dict[int, tuple[Any, ASGIApp]] | None = None
    # Read by an inclusion, and not among the options of every version.
    stream_item_type = max_body_size = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Keep what `APIRoute` takes: an inclusion makes another route of it."""
        self.__dict__.update(options)
        self.path = path
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.endpoint = endpoint
        self.name = options.get("name") or endpoint.__name__
        self.methods = set(options["methods"])
        self._unbuilt: dict[str, Any] | None = {**vars(self)}
        self._options = options

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that FastAPI builds, which itself probes for some."""
        with _BUILDING:
            unbuilt, self._unbuilt = vars(self).get("_unbuilt"), None
            if unbuilt is not None:
                # Of an application that sets the ids of its operations: FastAPI's docs have a way.
                changed = {
                    key: value
                    for key, value in vars(self).items()
                    if key in unbuilt and unbuilt[key] is not value
                }
                super().__init__(self.path, self.endpoint, **self._options)
                self.__dict__.update(changed)
            return object.__getattribute__(self, name)

    @property
    def served(self) -> AdmittingEndpoint:
        """The endpoint, which FastAPI holds as any callable.

        FastAPI may make a route anew from it when a router is included: all that a route needs is
        there.
        """
        assert isinstance(self.endpoint, AdmittingEndpoint)
        return self.endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the endpoint, or refuse its method.

        Dependencies of the application, or with which the router was included, come first.
        """
        method, endpoint = scope["method"], self.served
        # HEAD is no method of the route: FastAPI would put it into OpenAPI.
        if method != endpoint.method and not (method == "HEAD" and endpoint.allows_head):
            methods = ", ".join(endpoint.methods)
            problem = Problem(
                "method-not-allowed",
                f"{method} is not allowed at {scope['path']}; allowed: {methods}",
                headers={"Allow": methods},
            )
            await send_response(send, problem.response(endpoint.context.prefix, scope["path"]))
            return
        included = effective_route(scope) or self
        app = self._behind_dependencies(included) if included.dependencies else endpoint
        await app(scope, receive, send)

    def _behind_dependencies(self, included: Any) -> ASGIApp:
        """Return the endpoint behind the dependencies of the application or of an inclusion.

        FastAPI runs them, as in front of any endpoint, and responds to what they raise.
        """
        if self._guarded is None:
            self._guarded = {}
        if id(included) not in self._guarded:
            endpoint = self.served

            async def delegate(request: Request) -> Response:
                return _Delegated(endpoint, request)

            route = APIRoute(
                included.path,
                delegate,
                response_model=None,
                dependencies=included.dependencies,
                dependency_overrides_provider=included.dependency_overrides_provider,
            )
            self._guarded[id(included)] = (included, route.app)
        return self._guarded[id(included)][1]


def add_route(
    router: APIRouter,
    path: str,
    endpoint: AdmittingEndpoint,
    *,
    problems: tuple[str, ...] = (),
    responses: Responses | None = None,
    **options: Any,
) -> None:
    """Add a route at `path`, below the prefix of `router`, to `endpoint`.

    OpenAPI has the name of its function as operation id, the first line of its docstring as
    summary, and the others as description. `problems` are the kinds besides those of every
    endpoint, `responses` more about responses by status, and `options` those of APIRoute, of which
    the docstring of a `response_model` is the description of the response.
    """
    summary, _, description = (endpoint.__doc__ or "").partition("\n")
    model = options.get("response_model")
    if model is not None:
        options.setdefault("response_description", inspect.getdoc(model))
    siblings = [
        route.served
        for route in router.routes
        if isinstance(route, RawRoute) and route.path == router.prefix + path
    ]
    methods = [endpoint.method, "HEAD"] if endpoint.allows_head else [endpoint.method]
    endpoint.methods = siblings[0].methods if siblings else []
    endpoint.methods += methods
    endpoint.route_options = {
        "methods": [endpoint.method],
        "summary": summary.rstrip("."),
        "description": description.strip() or summary,
        "responses": {
            **problem_responses(*admission_problems(endpoint), *problems),
            **(responses or {}),
        },
        # Of the path as it is in the document: without the convertors.
        "generate_unique_id_function": partial(_operation_id, compile_path(path)[1]),
        "route_class_override": RawRoute,
        **options,
    }
    router.add_api_route(path, endpoint, **endpoint.route_options)


def add_handler(
    router: APIRouter,
    context: EndpointContext,
    route: str,
    handler: Callable[..., Awaitable[Any]],
    access: Access | None,
    *,
    body: JsonBody[Any] | None = None,
    max_body: int = 0,
    status_code: int = 200,
    allows_head: bool = False,
    **described: Any,
) -> PlainEndpoint:
    """Add a `route` such as "GET /keys", whose requests `handler` responds to.

    `described` is what `add_route` takes: `response_model` for a handler that returns no model.
    """
    method, _, path = route.partition(" ")
    endpoint = PlainEndpoint(
        context, method, handler, access, status_code=status_code, body=body, max_body=max_body
    )
    endpoint.allows_head = allows_head
    returned = endpoint.__signature__.return_annotation
    is_model = isinstance(returned, type) and issubclass(returned, BaseModel)
    model = returned if is_model else None
    options = {"status_code": status_code, "response_model": model, **described}
    add_route(router, path, endpoint, **options)
    return endpoint


def include_in_app(app: FastAPI, router: APIRouter) -> None:
    """Include `router` in `app`: its raw routes as routes of the application itself.

    An included route is one that FastAPI builds anew, and that is searched for through its router.
    """
    raw = [route for route in router.routes if isinstance(route, RawRoute)]
    router.routes[:] = [route for route in router.routes if not isinstance(route, RawRoute)]
    for route in raw:
        app.router.add_api_route(
            route.path,
            route.endpoint,
            tags=router.tags,
            dependencies=router.dependencies,
            **route.served.route_options,
        )
    # Still with its lifespan.
    app.include_router(router)


def _operation_id(own_path: str, route: Any) -> str:
    """Return the endpoint's name: `watch_key`; `v2_watch_key` under another prefix than ours.

    Client generators name their methods after it, so it is as short as a person would choose.
    """
    before = route.path_format.removesuffix(own_path).removesuffix(DEFAULT_PREFIX)
    return "_".join([*re.findall(r"\w+", before), route.endpoint.__name__])
