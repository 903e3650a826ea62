"""The errors of the application stay as FastAPI, or the application, writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, ParkDep, Problem, PurgatoryDep, install
from purgatory.jobs import JobContext, MemoryJobStore
from tests.cases import cases

PROBLEM = "application/problem+json"
TOKENS = BearerTokens.from_text("token-of-the-operator *")


class Order(BaseModel):
    id: int
    by: str


def application() -> FastAPI:
    """An application that refuses in every shape that FastAPI has."""
    app, inner = FastAPI(), FastAPI()

    @app.get("/conflict")
    @inner.get("/conflict")
    def conflict() -> None:
        raise HTTPException(409, {"code": 17, "items": [1, 2]}, headers={"X-Own": "1"})

    @app.get("/starlette")
    def starlette() -> None:
        raise StarletteHTTPException(418, "no coffee")

    @app.get("/nothing")
    def nothing() -> None:
        raise HTTPException(204)

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError

    @app.post("/orders/{number}")
    def order(number: int, order: Annotated[Order, Body()], size: int) -> int:
        return number

    app.mount("/inner", inner)
    return app


REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/conflict", None),
    ("GET", "/starlette", None),
    ("GET", "/nothing", None),
    ("GET", "/broken", None),
    ("GET", "/nowhere", None),
    ("DELETE", "/conflict", None),
    ("POST", "/orders/x?size=big", {"id": "y"}),
    ("POST", "/orders/1?size=1", "{"),
    ("GET", "/inner/conflict", None),
    ("GET", "/inner/nowhere", None),
    ("PUT", "/inner/conflict", None),
    ("GET", "/purgatoryish", None),
    ("GET", "/own/purgatory/nowhere", None),
]


async def ask(app: FastAPI, method: str, path: str, body: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
        content = body if isinstance(body, str) else json.dumps(body)
        return await client.request(
            method,
            path,
            content=None if body is None else content,
            headers={"Content-Type": "application/json"},
        )


def add_own_handlers(app: FastAPI) -> None:
    """Write errors in the application's own way."""

    async def own(request: Request, exc: Exception) -> Response:
        return PlainTextResponse(f"own {type(exc).__name__}", 499, {"X-Own": "1"})

    for kind in (StarletteHTTPException, RequestValidationError, ZeroDivisionError, 405):
        app.add_exception_handler(kind, own)


def no_handlers(app: FastAPI) -> None:
    """Leave everything to FastAPI."""


@cases("authorize", [None, ALLOW_ANYONE, TOKENS])
@cases("when", ["before", "after"])
@cases("add_handlers", [no_handlers, add_own_handlers])
async def test_the_application_s_errors_stay_as_they_were(
    add_handlers: Callable[[FastAPI], None], when: str, authorize: Any
) -> None:
    """Status, headers and body, byte by byte, and what OpenAPI says of its endpoints."""
    plain, app = application(), application()
    add_handlers(plain)
    if when == "before":
        add_handlers(app)
    purgatory = Purgatory()
    install(app, purgatory, authorize=authorize)
    install(app, purgatory, prefix="/other")
    if when == "after":
        add_handlers(app)
    for method, path, body in REQUESTS:
        expected, seen = await ask(plain, method, path, body), await ask(app, method, path, body)
        assert (seen.status_code, seen.content) == (expected.status_code, expected.content), path
        assert seen.headers == expected.headers
    before, after = plain.openapi(), app.openapi()
    for path, item in before["paths"].items():
        assert after["paths"][path] == item
    for name, schema in before["components"]["schemas"].items():
        assert after["components"]["schemas"][name] == schema
    assert "security" not in after


async def test_below_our_prefixes_every_error_is_a_problem() -> None:
    """An address that does not exist, and what a dependency of ours raises."""

    def check(user: Annotated[str, Header()], size: int = 1) -> None:
        if user != "ann":
            raise HTTPException(403, {"who": user}, headers={"X-Own": "1"})

    app = application()
    purgatory = Purgatory()
    install(app, purgatory, authorize=check)
    install(app, purgatory, prefix="/other")
    for path, status in (
        ("/purgatory/nowhere", 404),
        ("/other/nowhere", 404),
        ("/purgatory/watch/k", 422),
        ("/other/keys", 403),
    ):
        answer = await ask(app, "GET", path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), path
        assert answer.json()["instance"] == path
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
        refused = await client.get("/purgatory/watch/k", headers={"User": "bob"})
    assert (refused.status_code, refused.headers["x-own"]) == (403, "1")
    assert refused.json()["error"] == {"who": "bob"}


@cases("when", ["before", "after"])
async def test_our_exceptions_in_its_endpoints_are_problems(when: str) -> None:
    """Those of ParkDep and of the library, though HTTPException has a handler of its own."""
    app, purgatory = FastAPI(), Purgatory()
    if when == "before":
        add_own_handlers(app)
    install(app, purgatory, endpoints=())
    if when == "after":
        add_own_handlers(app)

    @app.get("/parked/{key}")
    async def parked(key: str, park: ParkDep) -> bool:
        return bool(await park(key, timeout=5))

    @app.get("/refused")
    async def refused() -> None:
        raise Problem("full", "no room")

    assert (await ask(app, "GET", "/refused")).headers["content-type"] == PROBLEM
    closed = await ask(app, "GET", "/parked/k")
    assert (closed.status_code, closed.headers["content-type"]) == (503, PROBLEM)
    async with purgatory:
        long_key = await ask(app, "GET", f"/parked/{'x' * 300}")
        assert (long_key.status_code, long_key.headers["content-type"]) == (422, PROBLEM)
        await purgatory.drain()
        drained = await ask(app, "GET", "/parked/k")
        assert (drained.status_code, drained.headers["content-type"]) == (503, PROBLEM)


async def test_a_handler_of_its_own_for_our_errors_stays() -> None:
    """In whichever order."""
    app = FastAPI()

    @app.exception_handler(Problem)
    async def on_problem(request: Request, exc: Problem) -> Response:
        return JSONResponse({"own": exc.status_code}, exc.status_code)

    install(app, Purgatory(), problem_details="app")

    @app.get("/refused")
    async def refused() -> None:
        raise Problem("full", "no room")

    assert (await ask(app, "GET", "/refused")).json() == {"own": 503}


@cases(
    "documentation, hint",
    [
        ({}, ": the endpoints are documented at /docs"),
        ({"docs_url": "/help"}, ": the endpoints are documented at /help"),
        ({"docs_url": None}, ""),
        ({"openapi_url": None}, ""),
    ],
)
async def test_what_does_not_exist_leads_to_the_documentation(
    documentation: dict[str, Any], hint: str
) -> None:
    """If the application has such a page."""
    app = FastAPI(**documentation)
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    found = (await ask(app, "GET", "/purgatory/dashbord")).json()["detail"]
    assert found == f"nothing exists at /purgatory/dashbord{hint}"


async def test_a_page_of_the_application_s_own_is_found() -> None:
    """At /docs, in place of the one of FastAPI, and as it is called from outside."""
    app = FastAPI(docs_url=None)
    app.get("/docs")(lambda: "read this")
    install(app, Purgatory(), authorize=ALLOW_ANYONE)
    transport = httpx.ASGITransport(app, root_path="/api")
    async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
        found = (await client.get("/api/purgatory/x")).json()["detail"]
    assert found.endswith("documented at /api/docs")


async def test_the_whole_application_when_asked() -> None:
    """All but what is mounted, which has handlers of its own; status and headers are the same."""
    app, plain = application(), application()
    install(app, Purgatory(), problem_details="app")
    for method, path, body in REQUESTS:
        answer, expected = await ask(app, method, path, body), await ask(plain, method, path, body)
        is_problem = answer.headers.get("content-type") == PROBLEM
        assert is_problem == (path != "/nothing" and not path.startswith("/inner")), path
        assert answer.status_code == expected.status_code
        for name in ("allow", "x-own"):
            assert answer.headers.get(name) == expected.headers.get(name)
    refused = (await ask(app, "POST", "/orders/x?size=big", {"id": "y"})).json()
    pointers = {error["pointer"] for error in refused["errors"]}
    assert pointers == {"/path/number", "/query/size", "/body/id", "/body/by"}
    assert (await ask(app, "GET", "/conflict")).json()["error"] == {"code": 17, "items": [1, 2]}
    assert "ZeroDivision" not in (await ask(app, "GET", "/broken")).text


def test_another_choice_is_refused() -> None:
    """With those that there are."""
    app = FastAPI()
    with pytest.raises(ValueError, match=r"problem_details is True: give 'purgatory' .* or 'app'"):
        install(app, Purgatory(), problem_details=True)  # type: ignore[arg-type] # on purpose
    # Nothing of it is left.
    assert not hasattr(app.state, "purgatory")
    install(app, Purgatory())


def test_tokens_are_declared_for_our_operations_only() -> None:
    """OpenAPI's pages offer to send one there."""
    app = application()
    install(app, Purgatory(), authorize=TOKENS)
    paths = app.openapi()["paths"]
    assert paths["/purgatory/keys"]["get"]["security"] == [{"bearer": []}]
    assert "security" not in paths["/purgatory/problems/{slug}"]["get"]
    assert "security" not in paths["/conflict"]["get"]


async def test_an_endpoint_behind_its_own_guard_keeps_its_401() -> None:
    """The guard of another endpoint is none of ours."""

    def guard() -> None:
        raise HTTPException(401, "who are you?", headers={"WWW-Authenticate": "Basic"})

    app = FastAPI()
    install(app, Purgatory())

    @app.get("/guarded", dependencies=[Depends(guard)])
    async def guarded() -> None: ...

    answer = await ask(app, "GET", "/guarded")
    assert (answer.status_code, answer.json()) == (401, {"detail": "who are you?"})
    assert answer.headers["www-authenticate"] == "Basic"


@pytest.mark.parametrize(
    ("path", "status", "level", "words"),
    [
        ("/timeout", 422, "WARNING", "GET /timeout raised InvalidTimeoutError"),
        ("/on-fire", 422, "WARNING", "GET /on-fire raised InvalidJobError"),
        ("/handler", 500, "ERROR", "GET /handler failed"),
    ],
)
async def test_an_invalid_argument_in_an_endpoint_is_logged(
    path: str, status: int, level: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a mistake in the code; and names of handlers are not for its clients."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory)

    @purgatory.handler("secret-name")
    async def handler(job: JobContext) -> None: ...

    @app.get("/timeout")
    async def timeout(park: ParkDep) -> None:
        await park("k", timeout=-1)

    @app.get("/on-fire")
    async def on_fire(purgatory: PurgatoryDep) -> None:
        await purgatory.defer("secret-name", delay=1, keys=["k"], on_fire="explode")  # type: ignore[arg-type]

    @app.get("/handler")
    async def unknown(purgatory: PurgatoryDep) -> None:
        await purgatory.defer("nope", delay=1)

    async with app.router.lifespan_context(app):
        caplog.clear()
        response = await ask(app, "GET", path)
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM)
    assert "secret-name" not in response.text
    record = next(record for record in caplog.records if words in record.message)
    assert record.levelname == level


async def test_a_missing_job_store_is_no_secret_of_its_developers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client of an endpoint that defers learns of a failure; the log what to do."""
    app = FastAPI()
    install(app, Purgatory())

    @app.get("/defer")
    async def defer(purgatory: PurgatoryDep) -> None:
        await purgatory.defer("nope", delay=1)

    async with app.router.lifespan_context(app):
        reply = await ask(app, "GET", "/defer")
    assert (reply.status_code, reply.headers["content-type"]) == (500, PROBLEM)
    assert reply.json()["detail"] == "the request failed; the server's log has the reason"
    assert "GET /defer failed" in caplog.text and "Purgatory(jobs=" in caplog.text


@pytest.mark.anyio
async def test_a_purgatory_that_is_not_open_is_no_secret_of_its_developers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client of an endpoint that parks or fires learns the fact; the log, once, what to do."""
    app = FastAPI()
    install(app, Purgatory("shop"))

    @app.get("/orders")
    async def order(park: ParkDep) -> None:
        await park("k", timeout=5)

    @app.get("/pay")
    async def pay(purgatory: PurgatoryDep) -> None:
        await purgatory.fire("k")

    # Its lifespan never runs.
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/orders", "/pay", "/orders"):
            reply = await client.get(path)
            assert reply.status_code == 503 and reply.json()["type"].endswith("/not-open")
            assert reply.json()["detail"] == "The purgatory is not open."
            assert "retry-after" in reply.headers
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said.startswith("GET /orders raised PurgatoryClosedError, ")
    assert ": purgatory 'shop' is not open: use it inside `async with`" in said
