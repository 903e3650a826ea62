"""Our routes among those of an application."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.jobs import MemoryJobStore
from tests.needs import ROUTE_CONTEXTS


def test_dependencies_of_the_application_come_first() -> None:
    """Those that it was made with stand before endpoints that are its own routes, too."""
    seen: list[str] = []

    def of_application() -> None:
        seen.append("application")

    def of_authorize() -> None:
        seen.append("authorize")

    app = FastAPI(dependencies=[Depends(of_application)])
    install(app, Purgatory(), authorize=of_authorize)
    with TestClient(app) as client:
        assert client.get("/purgatory/statistics").status_code == 200
    assert seen == ["application", "authorize"]


@ROUTE_CONTEXTS
def test_dependencies_hold_in_a_mounted_application() -> None:
    """The outer application's record of a route, which stays in the scope, is not the inner's."""

    def refuse() -> None:
        raise PermissionError

    inner = FastAPI()
    install(inner, Purgatory(), authorize=refuse)
    router = APIRouter()
    router.mount("/inner", inner)
    app = FastAPI()
    app.include_router(router, prefix="/outer")
    client = TestClient(app)
    with pytest.raises(PermissionError):
        client.get("/outer/inner/purgatory/statistics")


def test_a_route_reads_as_one_of_fastapi() -> None:
    """What looks at `app.routes` finds what FastAPI would have put there."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    [route] = [
        item for item in app.routes if isinstance(item, APIRoute) and item.name == "statistics"
    ]
    assert (route.path, route.methods, route.tags) == (
        "/purgatory/statistics",
        {"GET"},
        ["purgatory"],
    )
    assert route.dependant.path == "/purgatory/statistics"
    assert route.response_field is not None
    assert not hasattr(route, "no_such_attribute")


def test_what_an_application_sets_of_a_route_stays() -> None:
    """Such as ids of operations, by FastAPI's recipe, before the document is made."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    for route in app.routes:
        if isinstance(route, APIRoute):
            route.operation_id = f"my_{route.name}"
    assert app.openapi()["paths"]["/purgatory/statistics"]["get"]["operationId"] == "my_statistics"


def test_fastapi_builds_each_of_them_once_for_openapi_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite whose tests make an application each does not pay for parsers that nobody calls."""
    built: list[APIRoute] = []
    init = APIRoute.__init__

    def build(self: APIRoute, *args: Any, **options: Any) -> None:
        built.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(APIRoute, "__init__", build)
    app = FastAPI(openapi_url=None)
    install(app, Purgatory(jobs=MemoryJobStore()), authorize=ALLOW_ANYONE)
    with TestClient(app) as client:
        assert client.get("/purgatory/keys").status_code == 200
        assert client.get("/purgatory/problems/not-found").status_code == 200
        assert client.put("/purgatory/keys").status_code == 405
    assert built == []
    operations = [item for path in app.openapi()["paths"].values() for item in path.values()]
    assert len(built) == len(operations) > 20
