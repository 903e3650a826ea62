"""Routes to our endpoints, those that go past FastAPI, and what both read from its insides.

The only user of these private names: `Request._body`, in which Starlette caches a body;
`Request._stream_consumed`; `Request._send`; and entries of FastAPI's in a scope: the exit stacks of
dependencies, and how the router of a route was included. Without the first two, a body is read from
the connection; without the next two, streams that park fail on a drain. Without the last,
dependencies given at `include_router` would be skipped, and with them perhaps an authorization:
`require_effective_routes` refuses to go on.

Fast routes bypass the middleware stack and the routing of FastAPI. `is_supported` checks that the
private names of an application mean what they are taken for. If not, a warning says so and no
request bypasses FastAPI: each is served through its public interface, which is slower.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from threading import RLock
from typing import Any, Final

import fastapi
import fastapi.routing
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.convertors import PathConvertor
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, Route, WebSocketRoute, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.http import asgi
from purgatory.fastapi.http.asgi import send_response, unwrapped_send
from purgatory.fastapi.http.json_bodies import JsonBody, ProblemDetails
from purgatory.fastapi.http.requests import Access, AsgiRequest
from purgatory.fastapi.http.responses import KINDS, MEDIA_TYPE, Problem
from purgatory.fastapi.routing.endpoints import (
    DEFAULT_PREFIX,
    AdmittingEndpoint,
    EndpointContext,
    PlainEndpoint,
)

logger = logging.getLogger("purgatory.fastapi")

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
    found, _ = _seen_by_a_route()
    if found != 1:
        raise RuntimeError(
            f"FastAPI {fastapi.__version__} does not say how a router was included ({found} of 1 "
            "dependencies seen): authorization given at include_router would be skipped; install "
            "a version of FastAPI that this version of fastapi-purgatory supports"
        )


def _seen_by_a_route() -> tuple[int, bool]:
    """Return how many dependencies a route of a small application sees: 1 is right.

    And whether its response finds the `send` of the server below the wrappers of Starlette. Nothing
    waits, so that it takes one step, without the event loop, which may not be running yet.
    """
    seen = 0, False

    class Probe(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal seen
            dependencies = getattr(effective_route(scope), "dependencies", ())
            seen = len(dependencies), is_unwrapped(send, _nothing)

    async def respond(request: Request) -> Response:
        return Probe()

    class ProbeRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            await fastapi.routing.request_response(respond)(scope, receive, send)

    router = APIRouter(route_class=ProbeRoute)
    router.add_api_route("/probe", _nothing)
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(_nothing)])
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
    unused: Any = _nothing
    call: Any = ServerErrorMiddleware(ExceptionMiddleware(app.router))(scope, unused, unused)
    try:
        call.send(None)
    except StopIteration:
        pass
    finally:
        call.close()
    return seen


async def _nothing() -> None:
    pass


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
        # {id of an inclusion of the router: the inclusion, the endpoint behind its dependencies}
        self._guarded: dict[int, tuple[Any, ASGIApp]] = {}

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


_STARLETTES_OWN = (ServerErrorMiddleware, ExceptionMiddleware)
_HAS_TELEMETRY = find_spec("fastapi.telemetry") is not None


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A method and path of ours, and the endpoint that FastAPI would call."""

    method: str
    path: str
    """The whole path or, if the endpoint has a path parameter, the part before it."""
    endpoint: AdmittingEndpoint

    def is_found_at(self, server_root: str, root_path: str) -> bool:
        """Return True iff Starlette finds it at `path` below `server_root`, whatever its parameter.

        It searches for the path without `root_path`, which may be another than the server's.
        """
        path = server_root + self.path
        return _path_in_app(path, root_path) == self.path and not root_path.startswith(path)


def find_fast_routes(app: Any) -> list[FastRoute]:
    """Return the routes whose requests would reach our endpoint through nothing but FastAPI.

    A route behind middleware, telemetry or dependencies, or behind another route that may match,
    is none; `bypass_middleware`, of `install`, says that middleware does not matter. To be called
    once the application has started.
    """
    if not is_supported() or not _is_plain(app):
        return []
    has_middleware = _has_middleware(app)
    found: list[FastRoute] = []
    earlier: list[Any] = []
    for context in route_contexts(app):
        fast_route = _fast_route(context, app)
        if (
            fast_route is not None
            and (fast_route.endpoint.context.bypass_middleware or not has_middleware)
            and not any(_may_match(other, fast_route) for other in earlier)
        ):
            found.append(fast_route)
        earlier.append(context)
    return found


def is_bare(app: Any) -> bool:
    """Return True iff the routes of `app` have nothing around them but FastAPI's own and ours.

    To be called once the application has started.
    """
    return is_supported() and _is_plain(app) and not _has_middleware(app)


@contextmanager
def fast_routes_installed(app: Any) -> Iterator[None]:
    """Have `app` hand the requests of its fast routes to our endpoints, past FastAPI.

    For the application's lifespan. That saves nine frames and as many calls per request, and a
    parked request keeps its frames. Does nothing if there is no fast route.
    """
    stack: ASGIApp | None = getattr(app, "middleware_stack", None)
    fast_routes = [] if isinstance(stack, FastRouteStack) else find_fast_routes(app)
    if stack is None or not fast_routes:
        yield
        return
    app.middleware_stack = FastRouteStack(stack, fast_routes)
    try:
        yield
    finally:
        app.middleware_stack = stack


class FastRouteStack:
    """The middleware stack of an application, with fast routes past it."""

    def __init__(self, app: ASGIApp, fast_routes: Sequence[FastRoute]) -> None:
        """Pass requests without a fast route on to `app`."""
        self.app = app
        self._fast_routes: dict[str, list[FastRoute]] = {}
        for fast_route in fast_routes:
            self._fast_routes.setdefault(fast_route.method, []).append(fast_route)

    # Not async: a parked request would keep one frame more.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the response to the request, to be awaited."""
        if scope["type"] == "http":
            path: str = scope["path"]
            if scope.get("root_path"):
                path = _path_in_app(path, scope["root_path"])
            for fast_route in self._fast_routes.get(scope["method"], ()):
                start = fast_route.path
                if path.startswith(start) and (fast_route.endpoint.path_parameter or path == start):
                    raw = AsgiRequest(scope, path[len(start) :])
                    return fast_route.endpoint.serve(raw, receive, send)
        return self.app(scope, receive, send)


def _path_in_app(path: str, root_path: str) -> str:
    return path[len(root_path) :] if path.startswith(root_path + "/") else path


def _fast_route(context: Any, app: FastAPI) -> FastRoute | None:
    """Return the fast way to a route of ours, whatever precedes it; None for other routes."""
    endpoint = getattr(context, "endpoint", None)
    if not isinstance(endpoint, AdmittingEndpoint) or not endpoint.is_fast:
        return None
    if context.dependencies:
        return None
    # FastAPI from 0.164 on: a limit of a router on bodies.
    if getattr(context, "max_body_size", None) is not None:
        return None
    literal, brace, parameter = context.path.partition("{")
    convertors = context.param_convertors
    if brace and (
        list(convertors) != [endpoint.path_parameter]
        or not isinstance(convertors[endpoint.path_parameter], PathConvertor)
        or not parameter.endswith("}")
    ):
        return None
    [method] = context.methods
    return FastRoute(method, literal, endpoint)


def _may_match(other: Any, fast_route: FastRoute) -> bool:
    """Return True unless a route certainly matches no request of `fast_route`."""
    route = _original_route(other)
    if isinstance(route, WebSocketRoute):
        return False
    if isinstance(route, Route) and other.methods and fast_route.method not in other.methods:
        return False
    path: str | None = getattr(other, "path", None)
    pattern: re.Pattern[str] | None = getattr(other, "path_regex", None)
    if path is None or pattern is None:
        return True
    if not fast_route.endpoint.path_parameter:
        return pattern.match(fast_route.path) is not None
    literal, has_parameters, _ = path.partition("{")
    if not isinstance(route, Route):
        # A mount: whatever is below its path.
        literal, has_parameters = literal.rstrip("/") + "/", "{"
    if literal.startswith(fast_route.path):
        return True
    return bool(has_parameters) and fast_route.path.startswith(literal)


@lru_cache(maxsize=1)
def is_supported() -> bool:
    """Return True iff this version of FastAPI has the insides that the functions here read."""
    try:
        missing = _unexpected()
    except Exception as exc:
        missing = repr(exc)
    if missing is not None:
        logger.warning(
            "the insides of FastAPI %s are unknown (%s): requests are served through all of it, "
            "which is slower",
            fastapi.__version__,
            missing,
            extra={"action": "fastapi-unsupported"},
        )
    return missing is None


def _is_plain(app: Any) -> bool:
    """Return True iff `app` is a FastAPI application whose requests are not traced or measured."""
    if not isinstance(app, FastAPI) or type(app).__call__ is not FastAPI.__call__:
        return False
    # Older versions have none.
    telemetry: Any = app._native_telemetry if _HAS_TELEMETRY else None
    return telemetry is None or not telemetry.enabled()


def _has_middleware(app: FastAPI) -> bool:
    """Return True iff `app` was given middleware that is neither FastAPI's own nor ours."""
    layer: Any = app.middleware_stack
    while layer is not app.router:
        kind = type(layer)
        is_own = kind.__module__.startswith(("fastapi.", "purgatory.fastapi."))
        if not is_own and kind not in _STARLETTES_OWN:
            return True
        # None for a layer that hides the next one.
        layer = getattr(layer, "app", None)
        if layer is None:
            return True
    return False


def route_contexts(app: FastAPI) -> Iterator[Any]:
    """Yield the routes of `app`, each as it is after all inclusions of routers."""
    # Before FastAPI 0.138 an included router is copied, and its routes are these.
    return getattr(fastapi.routing, "iter_route_contexts", iter)(app.routes)


def _original_route(context: Any) -> Any:
    """Return the route as it was before its router was included; a copy in an old FastAPI."""
    return context if isinstance(context, BaseRoute) else context.original_route


def _unexpected() -> str | None:
    """Return how a small application differs from what is expected of it; None if it does not."""
    inner = APIRouter(prefix="/inner", dependencies=[Depends(_nothing)])
    inner.add_api_route("/{key:path}", _nothing, methods=["PUT"])
    app = FastAPI()
    app.include_router(inner)
    app.middleware_stack = app.build_middleware_stack()
    *_, included = route_contexts(app)
    way = included.path, {*included.methods}, len(included.dependencies)
    if way != ("/inner/{key:path}", {"PUT"}, 1):
        return f"a route is {way}"
    if list(included.param_convertors) != ["key"] or included.endpoint is not _nothing:
        return "routes have other parameters or endpoints"
    if type(_original_route(included)) is not type(inner.routes[0]):
        return "routes have another origin"
    if _has_middleware(app) or not isinstance(_is_plain(app), bool):
        return "an application has middleware that nobody added"
    app = FastAPI()
    app.add_middleware(CORSMiddleware)
    app.middleware_stack = app.build_middleware_stack()
    if not _has_middleware(app):
        return "middleware is not found"
    return None if _seen_by_a_route() == (1, True) else "Starlette wraps send in another way"


def is_unwrapped(send: Any, own: Any) -> bool:
    """Return True iff nothing between `send` and the server's `own` function needs the messages.

    Middleware and routes that wrap `send` use the response, and must get it.
    """
    return bool(unwrapped_send(send, asgi.OBSERVERS) == own)
