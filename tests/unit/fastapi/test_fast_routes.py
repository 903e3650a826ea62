"""Which requests may go past the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from starlette._utils import get_route_path
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, create_router, install
from purgatory.fastapi.routing.routes import FastRoute, FastRouteStack, find_fast_routes
from tests.cases import cases
from tests.needs import BODY_LIMIT, TELEMETRY

ALL = {
    ("GET", "/purgatory/watch/"),
    ("GET", "/purgatory/watch"),
    ("POST", "/purgatory/watch"),
    ("POST", "/purgatory/keys/"),
}


def found(app: Any) -> set[tuple[str, str]]:
    """Return the methods and paths of the fast routes of an application that has started."""
    if isinstance(app, FastAPI):
        app.middleware_stack = app.build_middleware_stack()
    return {(fast_route.method, fast_route.path) for fast_route in find_fast_routes(app)}


def endpoint(request: Request) -> None:
    """Stand for an endpoint of the application's own."""


def nothing() -> None:
    """Stand for a dependency."""


def test_our_endpoints_have_fast_routes() -> None:
    """The hot ones, in an application without anything in front of them."""
    app = FastAPI()
    app.add_api_route("/orders/{order}", endpoint)
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    app.add_api_route("/{everything:path}", endpoint)
    assert found(app) == ALL


def test_a_route_that_comes_first() -> None:
    """What it might match is for the application to decide: its own method, and no other."""
    for path, gone in [
        ("/purgatory/watch/special", {("GET", "/purgatory/watch/")}),
        ("/purgatory/watch/{key}/x", {("GET", "/purgatory/watch/")}),
        ("/purgatory/{what}x", {("GET", "/purgatory/watch/")}),
        ("/purgatory/{what}/{key}", {("GET", "/purgatory/watch/")}),
        ("/purgatory/{what}", None),
        ("/{everything:path}", None),
        ("/purgatory/keys", set()),
        ("/purgatory/watch", {("GET", "/purgatory/watch")}),
        ("/purgatory/watching/{key}", set()),
        ("/purgator", set()),
        ("/other/{everything:path}", set()),
    ]:
        app = FastAPI()
        app.add_api_route(path, endpoint, methods=["GET"])
        install(app, Purgatory(), authorize=ALLOW_ANYONE)
        if gone is None:
            gone = {item for item in ALL if item[0] == "GET"}
        assert found(app) & ALL == ALL - gone


@cases(
    "path, is_in_front",
    [("/", True), ("/purgatory", True), ("/purgatory/keys", True), ("/static", False)],
)
def test_a_mount_that_comes_first(path: str, *, is_in_front: bool) -> None:
    """It takes everything below its path, whatever the method."""
    app = FastAPI()
    app.routes.append(Mount(path, app=FastAPI()))
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    lost = {item for item in ALL if item[1].startswith(path.rstrip("/") + "/")}
    assert found(app) & ALL == (ALL - lost if is_in_front else ALL)


class Around:
    """Stands for middleware, or for anything else that is an application around another."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class OwnApplication(FastAPI):
    """An application that looks at every request itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def _middleware() -> FastAPI:
    app = _installed(FastAPI())
    app.add_middleware(Around)
    return app


def _cors() -> FastAPI:
    app = _installed(FastAPI())
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    return app


def _middleware_from_the_start() -> FastAPI:
    return _installed(FastAPI(middleware=[Middleware(Around)]))


def _dependencies() -> FastAPI:
    app = FastAPI(dependencies=[Depends(nothing)])
    install(app, Purgatory(), bypass_middleware=True, authorize=ALLOW_ANYONE)
    return app


def _dependencies_of_an_inclusion() -> FastAPI:
    app, router = FastAPI(), create_router(Purgatory(), authorize=ALLOW_ANYONE)
    app.include_router(router, dependencies=[Depends(nothing)])
    return app


def _telemetry() -> FastAPI:
    provider: Any = object()
    return _installed(FastAPI(telemetry={"tracer_provider": provider}))


def _body_limit() -> FastAPI:
    return _installed(FastAPI(max_body_size=100))


def _own_application() -> FastAPI:
    return _installed(OwnApplication())


def _around() -> Around:
    return Around(_installed(FastAPI()))


def _installed(app: FastAPI) -> FastAPI:
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    return app


@pytest.mark.parametrize(
    "make",
    [
        _middleware,
        _cors,
        _middleware_from_the_start,
        _dependencies,
        _dependencies_of_an_inclusion,
        pytest.param(_telemetry, marks=TELEMETRY),
        pytest.param(_body_limit, marks=BODY_LIMIT),
        _own_application,
        _around,
    ],
)
def test_what_stands_in_front_is_asked(make: Callable[[], Any]) -> None:
    """Middleware, dependencies, telemetry, limits and applications around it: no fast route."""
    assert found(make()) == set()


def test_an_instrumented_stack() -> None:
    """What wraps the built stack, as instrumentation does, counts as middleware."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    app.middleware_stack = Around(app.build_middleware_stack())
    assert find_fast_routes(app) == []


def test_bypassing_middleware() -> None:
    """By name; and for that purgatory alone."""
    app = FastAPI()
    install(app, Purgatory(), bypass_middleware=True, authorize=ALLOW_ANYONE)
    app.include_router(create_router(Purgatory(), prefix="/other", authorize=ALLOW_ANYONE))
    app.add_middleware(Around)
    assert found(app) == ALL
    assert not any(path.startswith("/other") for _, path in found(app))


def test_a_prefix_with_a_parameter() -> None:
    """Who knows what it stands for: no fast route."""
    app = FastAPI()
    app.include_router(create_router(Purgatory(), authorize=ALLOW_ANYONE), prefix="/{tenant}")
    assert found(app) == set()


ROOT_PATHS = ["", "/", "/a", "/a/", "/b", "/purgatory", "/purgatory/watch", "/purgatory/watch/k"]


@pytest.fixture(scope="module")
def fast_routes() -> list[FastRoute]:
    """Those of an application with every endpoint, once for all root paths."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    app.middleware_stack = app.build_middleware_stack()
    return find_fast_routes(app)


def test_root_paths(fast_routes: list[FastRoute]) -> None:
    """A route is fast only if Starlette finds it, whatever follows."""
    for of_server in ROOT_PATHS:
        for root_path in ROOT_PATHS:
            assert fast_routes
            for route in fast_routes:
                paths = [
                    route.path + tail
                    for tail in (("k", "k/l", "kl") if route.endpoint.path_parameter else ("",))
                ]
                is_found = [
                    get_route_path({"path": of_server + path, "root_path": root_path}) == path
                    for path in paths
                ]
                if route.is_found_at(of_server, root_path):
                    assert all(is_found), route.path
                else:
                    # Routes at which the root path itself ends need not be fast.
                    assert not all(is_found) or root_path.startswith(of_server + route.path)


async def test_the_stack_is_the_applications_own_again_afterwards() -> None:
    """Fast routes last as long as the lifespan, and are taken once."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    app.include_router(create_router(Purgatory("other"), prefix="/other", authorize=ALLOW_ANYONE))
    stack = app.middleware_stack = app.build_middleware_stack()
    async with app.router.lifespan_context(app):
        shortened: Any = app.middleware_stack
        assert isinstance(shortened, FastRouteStack) and shortened.app is stack
    assert app.middleware_stack is stack
