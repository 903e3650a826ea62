"""Routes of FastAPI's whose requests go to raw ASGI endpoints, so that they stand in OpenAPI."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problems import KINDS, MEDIA_TYPE, Problem, ProblemKind
from purgatory.fastapi.http.raw_request import Access
from purgatory.fastapi.http.schemas import ProblemDetails
from purgatory.fastapi.routing.raw_endpoint import DEFAULT_PREFIX, AdmittingEndpoint
from purgatory.fastapi.routing.request_internals import cached_body, effective_route, is_body_read

Responses = dict[int | str, dict[str, Any]]

_PROBLEM_SCHEMA: Final = ProblemDetails.model_json_schema()


def response_header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    """Describe a header of a response; `kind` is a JSON type."""
    return {name: {"description": description, "schema": {"type": kind}}}


RETRY_AFTER: Final = response_header("Retry-After", "Seconds; jittered.", "integer")


def problem_responses(*slugs: str) -> Responses:
    """Return OpenAPI responses for kinds of problems: their statuses, and `default` for the body.

    The schema and an example stand once, under `default`: repeated for each status, they make a
    page of Swagger UI several screens long.
    """
    by_status: dict[int | str, list[ProblemKind]] = {}
    for kind in (KINDS[slug] for slug in slugs):
        by_status.setdefault(kind.status, []).append(kind)
    responses: Responses = {
        status: {
            "description": _description(kinds),
            "content": {MEDIA_TYPE: {}},
            **({"headers": RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status, kinds in by_status.items()
    }
    responses["default"] = {
        "description": "The body of every error (RFC 9457). `type` is the URL of a page about it.",
        # Not a model: FastAPI would declare it as application/json.
        "content": {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA, "example": _example(KINDS[slugs[0]])}},
    }
    return responses


def all_problems(access: Access | None, problems: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of problems of an endpoint, in the order in which requests are checked."""
    of_access = () if access is None else ("unauthorized", "forbidden")
    # Of requests with a body.
    receiving = ("request-timeout", "receiving-full") if "body-too-large" in problems else ()
    return (*of_access, "bad-parameter", *problems, *receiving)


def _description(kinds: list[ProblemKind]) -> str:
    lines = [f"`{kind.slug}`: {kind.title}." for kind in kinds]
    # Markdown: a list if there are several.
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _example(kind: ProblemKind) -> dict[str, Any]:
    return {
        "type": f"{DEFAULT_PREFIX}/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": kind.remedy,
        "instance": f"{DEFAULT_PREFIX}/...",
    }


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
        self, name: str, raw: AdmittingEndpoint, *, allows_head: bool, **options: Any
    ) -> None:
        """Describe what `raw` serves; `name` is the operation id.

        With `allows_head`, HEAD is served like GET: servers leave out the body. `options` are what
        APIRoute takes besides a path.
        """
        self.__name__ = name
        # That which FastAPI reads.
        self.__signature__ = raw.signature
        self.raw = raw
        self.allows_head = allows_head
        self.route_options = options
        self.methods: list[str] = []
        """Those of all routes at its path."""

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
        prefix = self.raw.context.prefix
        await send_response(send, problem.response(prefix, scope["path"]))


class RawRoute(APIRoute):
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
        """Return the raw endpoint behind the dependencies of the application or of an inclusion.

        FastAPI runs them, as in front of any endpoint, and responds to what they raise.
        """
        if self._guarded is None:
            self._guarded = {}
        if id(included) not in self._guarded:
            raw = self.declared.raw

            async def delegate(request: Request) -> Response:
                return _Delegated(raw, request)

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
    function: Callable[..., Any],
    raw: AdmittingEndpoint,
    *,
    allows_head: bool = False,
    problems: tuple[str, ...] = (),
    responses: Responses | None = None,
    **options: Any,
) -> None:
    """Add a route at `path`, below the prefix of `router`: `raw` serves what `function` describes.

    OpenAPI has the name of the function as operation id, the first line of its docstring as
    summary, and the others as description. `problems` are the kinds besides those of every
    endpoint, `responses` more about responses by status, and `options` those of APIRoute.
    """
    summary, _, description = inspect.cleandoc(function.__doc__ or "").partition("\n")
    endpoint = DeclaredEndpoint(
        function.__name__,
        raw,
        allows_head=allows_head,
        **options,
        methods=[raw.method],
        summary=summary.rstrip("."),
        description=description.strip() or summary,
        responses={
            **problem_responses(*all_problems(raw.access, problems)),
            **(responses or {}),
        },
        # Of the path as it is in the document: without the convertors.
        generate_unique_id_function=partial(_operation_id, compile_path(path)[1]),
        route_class_override=RawRoute,
    )
    siblings = [
        route.declared
        for route in router.routes
        if isinstance(route, RawRoute) and route.path == router.prefix + path
    ]
    if siblings:
        endpoint.methods = siblings[0].methods
    endpoint.methods += [raw.method, "HEAD"] if allows_head else [raw.method]
    router.add_api_route(path, endpoint, **endpoint.route_options)


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
