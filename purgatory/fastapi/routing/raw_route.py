"""Routes of FastAPI's whose requests go to raw ASGI endpoints, so that they stand in OpenAPI."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from threading import RLock
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.routing.admission import AdmittingEndpoint
from purgatory.fastapi.routing.endpoint_spec import (
    DEFAULT_PREFIX,
    EndpointSpec,
    Responses,
    all_problems,
    problem_responses,
)
from purgatory.fastapi.routing.request_internals import cached_body, effective_route, is_body_read

_BUILDING: Final = RLock()


class LazyRoute(APIRoute):
    """A route whose parameters, models and dependencies are built for OpenAPI only.

    FastAPI builds a parser for each parameter and model, which takes most of a millisecond a route,
    and builds it again where the router is included. A subclass that does not parse by FastAPI
    needs these for OpenAPI alone, and many processes never serve that.

    Called by FastAPI, on any thread. Every attribute that a constructed APIRoute has can be read.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take what `APIRoute` takes, and keep it for later."""
        # Read by an inclusion, and not among the options of every version.
        self.stream_item_type = None
        self.max_body_size = None
        # As they were given: what an inclusion reads in order to build another route.
        self.__dict__.update(options)
        self.path = path
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.endpoint = endpoint
        self.name = options.get("name") or endpoint.__name__
        self.methods = {method.upper() for method in options["methods"]}
        self._options: dict[str, Any] | None = options
        self._unchanged = dict(vars(self))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that FastAPI builds."""
        # Called only for what is missing, and by the build itself if that probes for something.
        with _BUILDING:
            options = vars(self).get("_options")
            if options is not None:
                self._build(options)
            return object.__getattribute__(self, name)

    def _build(self, options: dict[str, Any]) -> None:
        unchanged = vars(self).pop("_unchanged")
        # Of an application that sets the ids of its operations, say: FastAPI's docs have a recipe.
        changed = {
            name: value for name, value in vars(self).items() if unchanged.get(name) is not value
        }
        self._options = None
        super().__init__(self.path, self.endpoint, **options)
        self.__dict__.update(changed)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what FastAPI would call, if the route did not handle requests otherwise."""
        return _never_called


async def _never_called(request: Request) -> Response:
    raise AssertionError("a LazyRoute handles requests itself")


def behind_dependencies(
    raw: ASGIApp, path: str, dependencies: Sequence[Depends], overrides_provider: Any
) -> ASGIApp:
    """Return `raw` behind the dependencies of an application or of an included router.

    FastAPI runs them, as in front of any endpoint, and responds to what they raise.
    """

    async def delegate(request: Request) -> Response:
        return _Delegated(raw, request)

    route = APIRoute(
        path,
        delegate,
        response_model=None,
        dependencies=dependencies,
        dependency_overrides_provider=overrides_provider,
    )
    return route.app


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


class DeclaredEndpoint:
    """The endpoint function as FastAPI sees it: described by its signature, and never called.

    FastAPI may make a route anew from it when a router is included, so all that a RawRoute needs
    is here.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        raw: AdmittingEndpoint,
        prefix: str,
        *,
        allows_head: bool = False,
        problems: tuple[str, ...] = (),
        responses: Responses | None = None,
        **options: Any,
    ) -> None:
        """Describe what `raw` serves; `name` is the operation id.

        With `allows_head`, HEAD is served like GET: servers leave out the body. `problems` are
        those besides what every endpoint has. `options` are what APIRoute takes besides a path.
        """
        self.__name__ = name
        # That which FastAPI reads.
        self.__signature__ = signature
        self.raw = raw
        self.allows_head = allows_head
        self.methods: list[str] = []
        """Those of all routes at its path."""
        self._prefix = prefix
        described = problem_responses(*all_problems(raw.access, problems))
        self.route_options: dict[str, Any] = {
            **options,
            "responses": {**described, **(responses or {})},
            "route_class_override": RawRoute,
        }

    def __call__(self) -> None:
        """Raise: requests go to `raw`."""
        raise AssertionError("a RawRoute hands requests to the raw endpoint")

    async def refuse_method(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send 405 with the methods that the address takes."""
        methods = ", ".join(self.methods)
        problem = Problem(
            "method-not-allowed",
            f"{scope['method']} is not allowed at {scope['path']}; allowed: {methods}",
            headers={"Allow": methods},
        )
        await send_response(send, problem.response(self._prefix, scope["path"]))


class RawRoute(LazyRoute):
    """A route whose requests go to the raw endpoint of a DeclaredEndpoint."""

    # {id of an inclusion of the router: the inclusion, the raw endpoint behind its dependencies}
    _guarded: dict[int, tuple[Any, ASGIApp]] | None = None

    @property
    def declared(self) -> DeclaredEndpoint:
        """The endpoint, which FastAPI holds as any callable."""
        endpoint = self.endpoint
        assert isinstance(endpoint, DeclaredEndpoint)
        return endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the raw endpoint, or refuse its method.

        Dependencies of the application, or with which the router was included, come first.
        """
        method = scope["method"]
        # HEAD is no method of the route: FastAPI would put it into OpenAPI.
        if method not in (self.methods or ()) and not (
            method == "HEAD" and self.declared.allows_head
        ):
            await self.declared.refuse_method(scope, receive, send)
            return
        included = effective_route(scope) or self
        raw = self._behind_dependencies(included) if included.dependencies else self.declared.raw
        await raw(scope, receive, send)

    def _behind_dependencies(self, included: Any) -> ASGIApp:
        if self._guarded is None:
            self._guarded = {}
        if id(included) not in self._guarded:
            app = behind_dependencies(
                self.declared.raw,
                included.path,
                included.dependencies,
                included.dependency_overrides_provider,
            )
            self._guarded[id(included)] = (included, app)
        return self._guarded[id(included)][1]


def add_endpoint(router: APIRouter, spec: EndpointSpec, raw: AdmittingEndpoint) -> None:
    """Add a route that `spec` describes in OpenAPI and `raw` serves."""
    endpoint = DeclaredEndpoint(
        spec.name,
        spec.signature,
        raw,
        router.prefix,
        problems=spec.problems,
        responses=spec.responses,
        methods=[spec.method],
        status_code=spec.status,
        summary=spec.summary,
        description=inspect.cleandoc(spec.description),
        response_description=spec.response_description,
        response_model=spec.response,
    )
    add_route(router, spec.path, endpoint)


def add_route(router: APIRouter, path: str, endpoint: DeclaredEndpoint) -> None:
    """Add a route below the prefix of `router`."""
    siblings = [
        route.declared
        for route in router.routes
        if isinstance(route, RawRoute) and route.path == router.prefix + path
    ]
    if siblings:
        endpoint.methods = siblings[0].methods
    options = endpoint.route_options
    endpoint.methods += [*options["methods"], *(["HEAD"] if endpoint.allows_head else [])]
    # Of the path as it is in the document: without the convertors.
    options["generate_unique_id_function"] = partial(_operation_id, compile_path(path)[1])
    router.add_api_route(path, endpoint, **options)


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
            **route.declared.route_options,
        )
    # Still with its lifespan.
    app.include_router(router)


def _operation_id(own_path: str, route: Any) -> str:
    """Return the endpoint's name: `watch_key`; `v2_watch_key` under another prefix than ours.

    Client generators name their methods after it, so it is as short as a person would choose.
    """
    before = route.path_format.removesuffix(own_path).removesuffix(DEFAULT_PREFIX)
    return "_".join([*re.findall(r"\w+", before), route.endpoint.__name__])
