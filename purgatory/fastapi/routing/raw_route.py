"""Routes of FastAPI's whose requests go to raw ASGI endpoints, so that they stand in OpenAPI."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.routing.dependency_route import behind_dependencies
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX, EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.lazy_route import LazyRoute
from purgatory.fastapi.routing.openapi import problem_responses
from purgatory.fastapi.routing.request_internals import effective_route


class BoundedApp(Protocol):
    """An ASGI application that reads bodies up to a bound."""

    context: EndpointContext
    max_body: int
    """Bytes; 0 if it reads none."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Respond to one request."""
        ...


class DeclaredEndpoint:
    """The endpoint function as FastAPI sees it: described by its signature, and never called.

    FastAPI may make a route anew from it when a router is included, so all that a RawRoute needs
    is here.
    """

    def __init__(
        self, spec: EndpointSpec, raw: BoundedApp, prefix: str, methods: list[str]
    ) -> None:
        """Describe `spec`, which `raw` serves; `methods` are those of all routes at its path."""
        self.__name__ = spec.name
        self.spec = spec
        self.route_options = _route_options(spec)
        self.raw = raw
        self.methods = methods
        self._prefix = prefix

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature that FastAPI reads."""
        return self.spec.signature

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
            method == "HEAD" and self.declared.spec.allows_head
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


def add_endpoint(router: APIRouter, spec: EndpointSpec, raw: BoundedApp) -> None:
    """Add a route that `spec` describes in OpenAPI and `raw` serves."""
    siblings = [
        route.declared
        for route in router.routes
        if isinstance(route, RawRoute) and route.path == router.prefix + spec.path
    ]
    methods = siblings[0].methods if siblings else []
    methods += [spec.method, "HEAD"] if spec.allows_head else [spec.method]
    endpoint = DeclaredEndpoint(spec, raw, router.prefix, methods)
    router.add_api_route(spec.path, endpoint, **endpoint.route_options)


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


def _route_options(spec: EndpointSpec) -> dict[str, Any]:
    """Return the arguments of `add_api_route` that an endpoint decides."""
    return {
        "methods": [spec.method],
        "status_code": spec.status,
        "summary": spec.summary,
        "description": inspect.cleandoc(spec.description),
        "response_description": spec.response_description,
        # Of the path as it is in the document: without the convertors.
        "generate_unique_id_function": partial(_operation_id, compile_path(spec.path)[1]),
        "response_model": spec.response,
        "responses": {**problem_responses(*spec.all_problems), **spec.responses},
        "route_class_override": RawRoute,
        "openapi_extra": dict(spec.openapi_extra) or None,
    }


def _operation_id(own_path: str, route: Any) -> str:
    """Return the endpoint's name: `watch_key`; `v2_watch_key` under another prefix than ours.

    Client generators name their methods after it, so it is as short as a person would choose.
    """
    before = route.path_format.removesuffix(own_path).removesuffix(DEFAULT_PREFIX)
    return "_".join([*re.findall(r"\w+", before), route.endpoint.__name__])
