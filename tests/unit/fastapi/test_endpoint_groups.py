"""Which endpoints exist, and what the log says about them at the start."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException

from purgatory import Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    BearerTokens,
    ParkDep,
    TrustedHosts,
    create_router,
    install,
)
from purgatory.fastapi.http.responses import KINDS
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.jobs.callbacks import CALLBACK
from tests.cases import cases
from tests.unit.exchange import Exchange, Reply

TOKENS = BearerTokens.from_text("token-of-the-operator *")
JSON = {"Content-Type": "application/json"}
# Method, path and the group of an endpoint of each path.
CLOSED = [
    ("POST", "/keys/order:42", "keys"),
    ("POST", "/keys/a/b", "keys"),
    ("POST", "/keys", "keys"),
    ("GET", "/keys", "keys"),
    ("GET", "/keys/order:42", "keys"),
    ("DELETE", "/keys/order:42", "keys"),
    ("POST", "/jobs", "jobs"),
    ("POST", "/jobs:batch", "jobs"),
    ("GET", "/jobs", "jobs"),
    ("GET", "/jobs/0123", "jobs"),
    ("PATCH", "/jobs/0123", "jobs"),
    ("DELETE", "/jobs/0123", "jobs"),
    ("POST", "/jobs/0123/run", "jobs"),
    ("GET", "/statistics", "statistics"),
    ("GET", "/waits", "dashboard"),
    ("GET", "/dashboard", "dashboard"),
    ("GET", "/dashboard/snapshot", "dashboard"),
    ("POST", "/dashboard/actions", "dashboard"),
]
GROUP_PATHS = {
    "watch": {
        "/purgatory/purgatory.js",
        "/purgatory/watch/{key}",
        "/purgatory/watch",
        "/purgatory/waits/{id}",
    },
    "keys": {"/purgatory/keys/{key}", "/purgatory/keys"},
    "jobs": {
        "/purgatory/jobs",
        "/purgatory/jobs:batch",
        "/purgatory/jobs/{id}",
        "/purgatory/jobs/{id}/run",
        "/purgatory/jobs/{id}/retry",
        "/purgatory/jobs:pause",
        "/purgatory/jobs:paused",
        "/purgatory/jobs:resume",
        "/purgatory/jobs:retry",
    },
    "statistics": {"/purgatory/statistics"},
    "dashboard": {
        "/purgatory/waits",
        "/purgatory/dashboard",
        "/purgatory/dashboard/snapshot",
        "/purgatory/dashboard/actions",
        "/purgatory/dashboard/static/{file}",
    },
}
PROBLEMS = {"/purgatory/problems/{slug}"}


def with_jobs() -> Purgatory:
    return Purgatory(jobs=MemoryJobStore())


async def ask(
    app: FastAPI, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON
) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = Exchange(path, headers, method=method, body=[content if body is not None else b""])
    return await exchange.begin(app).reply()


def paths(app: FastAPI) -> set[str]:
    return set(app.openapi()["paths"])


async def test_without_authorize_only_watching_is_open() -> None:
    """Everything else is refused by a sentence that says how to open it, whatever the body."""
    app, purgatory = FastAPI(), with_jobs()
    install(app, purgatory)
    async with app.router.lifespan_context(app):
        for method, path, group in CLOSED:
            for body in (None, {"handler": "x"}, b"\xff"):
                reply = await ask(app, method, f"/purgatory{path}", body)
                problem = reply.json()
                assert reply.status == 403, (method, path)
                assert problem["type"] == "/purgatory/problems/endpoint-closed", (method, path)
                for part in (f"endpoints of {group} are closed", "BearerTokens", "ALLOW_ANYONE"):
                    assert part in problem["detail"], (method, path)
        assert purgatory.signals.head() == 0
        watched = await ask(app, "GET", "/purgatory/watch/order:42", headers={"Prefer": "wait=0"})
        assert (watched.status, watched.json()["reason"]) == (200, "expired")
        several = {"keys": {"a": None}, "wait": "0"}
        assert (await ask(app, "POST", "/purgatory/watch", several)).status == 200
        ended = await ask(app, "DELETE", "/purgatory/waits/unknown-id-1234")
        assert ended.status in (404, 422)
    assert KINDS["endpoint-closed"].status == 403


def test_without_authorize_only_watching_is_offered() -> None:
    """Closed endpoints are not documented."""
    app = FastAPI()
    install(app, with_jobs())
    assert paths(app) == GROUP_PATHS["watch"] | PROBLEMS


@cases("authorize", [ALLOW_ANYONE, TOKENS, lambda: None])
def test_with_authorize_everything_is_offered(authorize: Any) -> None:
    """Jobs too, if there is a store for them."""
    app, other = FastAPI(), FastAPI()
    install(app, with_jobs(), authorize=authorize)
    assert paths(app) == set().union(*GROUP_PATHS.values()) | PROBLEMS
    install(other, Purgatory(), authorize=authorize)
    assert paths(app) - paths(other) == GROUP_PATHS["jobs"]


@cases("authorize", [None, ALLOW_ANYONE])
async def test_jobs_without_a_store(authorize: Any) -> None:
    """404 with the reason, unless the groups were chosen."""
    app, chosen = FastAPI(), FastAPI()
    install(app, Purgatory(), authorize=authorize)
    install(chosen, Purgatory(), authorize=authorize, endpoints={"watch"})
    for method, path in (("POST", "/jobs"), ("GET", "/jobs/1"), ("POST", "/jobs:batch")):
        reply = await ask(app, method, f"/purgatory{path}")
        assert (reply.status, reply.json()["type"]) == (404, "/purgatory/problems/not-found")
        assert "this purgatory has no job store" in reply.json()["detail"]
        reply = await ask(chosen, method, f"/purgatory{path}")
        assert (reply.status, "job store" in reply.json()["detail"]) == (404, False)


@cases("asked", [{"keys"}, ["watch", "statistics"], ("jobs",), {"watch"}])
async def test_endpoints_chooses_what_exists(asked: Any) -> None:
    """The others are not there at all."""
    app = FastAPI()
    install(app, with_jobs(), authorize=ALLOW_ANYONE, endpoints=asked)
    assert paths(app) == set().union(*(GROUP_PATHS[group] for group in asked)) | PROBLEMS
    missing = "/purgatory/keys" if "keys" not in asked else "/purgatory/statistics"
    async with app.router.lifespan_context(app):
        assert (await ask(app, "GET", missing)).status == 404


async def test_no_endpoints_for_those_who_only_park() -> None:
    """The purgatory is opened, and nothing but the application's own paths exists."""
    app, purgatory = FastAPI(), with_jobs()
    install(app, purgatory, endpoints=())

    @app.get("/parked")
    async def parked(park: ParkDep) -> bool:
        return bool(await park("k", timeout=0))

    assert paths(app) == {"/parked"}
    async with app.router.lifespan_context(app):
        assert purgatory.is_open
        assert (await ask(app, "GET", "/parked")).json() is False
        for path in ("/watch/k", "/keys", "/jobs", "/statistics", "/problems/full"):
            assert (await ask(app, "GET", f"/purgatory{path}")).status == 404


def test_choices_that_make_no_sense() -> None:
    """Said at install, with what to give."""
    choices: list[tuple[Any, type[Exception], str]] = [
        ({"keys", "jobs"}, ValueError, r"'jobs', 'keys', not for everyone: set authorize= to "),
        ({"statistics"}, ValueError, "BearerTokens, a dependency .* or ALLOW_ANYONE"),
        ({"watch", "fire"}, ValueError, "'fire'; the groups are 'dashboard', 'jobs', 'keys', 'me"),
        ("watch", TypeError, r"string 'watch': give a set, \{'watch'\}"),
    ]
    for asked, kind, words in choices:
        with pytest.raises(kind, match=words):
            install(FastAPI(), with_jobs(), endpoints=asked)
        with pytest.raises(kind, match=words):
            create_router(with_jobs(), endpoints=asked)
    with pytest.raises(ValueError, match=r"no job store: Purgatory\(jobs=\.\.\.\)"):
        install(FastAPI(), Purgatory(), endpoints={"jobs"}, authorize=ALLOW_ANYONE)
    with pytest.raises(TypeError, match="authorize is True, which cannot be called: set"):
        install(FastAPI(), Purgatory(), authorize=True)  # type: ignore[arg-type] # on purpose


async def test_closed_endpoints_do_not_hide_those_of_the_application() -> None:
    """An application may have paths of its own under the prefix."""
    app = FastAPI()
    install(app, with_jobs())
    router = APIRouter(prefix="/purgatory")

    @router.get("/own")
    async def own() -> str:
        return "own"

    app.include_router(router)
    assert (await ask(app, "GET", "/purgatory/own")).json() == "own"
    assert (await ask(app, "GET", "/purgatory/keyring")).status == 404


async def test_a_router_that_is_included_under_a_prefix_is_closed_there() -> None:
    """With the dependencies that it was included with, or without."""

    def guard() -> None:
        raise HTTPException(401)

    app = FastAPI()
    app.include_router(create_router(with_jobs()), prefix="/v2", dependencies=[Depends(guard)])
    reply = await ask(app, "POST", "/v2/purgatory/keys/k")
    assert (reply.status, reply.json()["type"]) == (403, "/v2/purgatory/problems/endpoint-closed")
    assert (await ask(app, "GET", "/v2/purgatory/watch/k")).status == 401


async def startup_log(
    caplog: pytest.LogCaptureFixture, purgatory: Purgatory, **options: Any
) -> list[tuple[str, str]]:
    caplog.clear()
    caplog.set_level(logging.INFO, "purgatory")
    app = FastAPI()
    install(app, purgatory, **options)
    async with app.router.lifespan_context(app):
        pass
    return [(r.levelname, r.message) for r in caplog.records if r.name == "purgatory.fastapi"]


async def test_the_log_says_at_the_start_what_is_open(caplog: pytest.LogCaptureFixture) -> None:
    """One line; a warning if anyone may add jobs."""
    [(level, line)] = await startup_log(caplog, with_jobs())
    assert level == "INFO"
    assert line.startswith(
        "/purgatory: watch open to anyone, dashboard, jobs, keys, statistics closed: set"
    )
    [(level, line)] = await startup_log(caplog, Purgatory(), prefix="/p", authorize=TOKENS)
    assert (level, line) == ("INFO", "/p: dashboard, keys, statistics, watch open to 1 token")

    async def my_check() -> None: ...

    for check in (my_check, partial(my_check)):
        [(level, line)] = await startup_log(caplog, Purgatory(), authorize=check)
        assert level == "INFO" and line.endswith("<locals>.my_check allows")
    [(level, line)] = await startup_log(caplog, Purgatory(), authorize=ALLOW_ANYONE)
    assert (level, line) == (
        "INFO",
        "/purgatory: dashboard, keys, statistics, watch open to anyone",
    )
    purgatory = with_jobs()

    @purgatory.handler(http=True)
    async def remind(job: JobContext) -> None: ...

    @purgatory.handler
    async def delete_user(job: JobContext) -> None: ...

    [(level, line)] = await startup_log(caplog, purgatory, authorize=ALLOW_ANYONE)
    assert level == "WARNING"
    assert line.endswith("open to anyone, who may add jobs for these handlers: 'remind'")
    # The service on loopback: an ordinary start, without a warning.
    [(level, line)] = await startup_log(caplog, with_jobs(), authorize=TrustedHosts(["localhost"]))
    assert level == "INFO" and "open to anyone who asks by a trusted name, who may add" in line
    assert await startup_log(caplog, Purgatory(), endpoints=set()) == []


async def test_a_request_never_reaches_a_handler_that_was_not_marked() -> None:
    """Alone, in a batch and as a callback: refused exactly like a handler that nobody has."""
    purgatory, app = with_jobs(), FastAPI()
    called: list[str] = []

    @purgatory.handler("inner")
    async def inner(job: JobContext) -> None:
        called.append("inner")

    @purgatory.handler("outer", http=True)
    async def outer(job: JobContext) -> None:
        called.append("outer")

    purgatory.handled_elsewhere(["far"])
    install(app, purgatory, authorize=ALLOW_ANYONE)
    async with app.router.lifespan_context(app):
        details = set()
        for name in ("inner", "far", "nobody", CALLBACK):
            for extra in ({}, {"payload": 1}, {"misfire": "skip"}, {"dedupe_key": "d"}):
                job = {"handler": name, "delay": 1000, **extra}
                reply = await ask(app, "POST", "/purgatory/jobs", job)
                assert (reply.status, reply.json()["param"]) == (422, "handler"), reply.body
                details.add(reply.json()["detail"].replace(repr(name), "?"))
                batch = await ask(app, "POST", "/purgatory/jobs:batch", job)
                assert batch.json()["status"] == 422
                details.add(batch.json()["problem"]["detail"].replace(repr(name), "?"))
        [detail] = details
        assert "known: 'outer'." in detail and "http=True" in detail
        callback = {"callback": {"url": "https://shop.example/hook"}, "delay": 1000}
        assert (await ask(app, "POST", "/purgatory/jobs", callback)).status == 422
        job = {"handler": "outer", "delay": 1000}
        assert (await ask(app, "POST", "/purgatory/jobs", job)).status == 201
        assert (await purgatory.defer("inner", delay=1000)).id
    assert called == []
