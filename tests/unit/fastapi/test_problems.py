"""The kinds of problems, and what stands in their documents."""

from __future__ import annotations

import inspect
import json

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from purgatory import Purgatory, PurgatoryError, errors
from purgatory.fastapi import ALLOW_ANYONE, Problem, install
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.responses import KINDS, draining_problem
from purgatory.job_errors import (
    StoreFullError,
    StoreNotReadyError,
    StoreOutOfSpaceError,
    StoreReadOnlyError,
)
from purgatory.jobs import (
    InvalidDeadlineError,
    JobConflictError,
    JobOutcome,
    JobState,
    StoreError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import new_job
from tests.cases import cases

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PurgatoryError)
]


def _client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://h")


@pytest.fixture
def app() -> FastAPI:
    """An application with a purgatory that nobody opens."""
    app = FastAPI()
    install(app, Purgatory(), problem_details="app", authorize=ALLOW_ANYONE)
    return app


@pytest.fixture(scope="module")
def shared_app() -> FastAPI:
    """The same for tests that leave it as it is: making it takes longer than any of them."""
    app = FastAPI()
    install(app, Purgatory(), problem_details="app", authorize=ALLOW_ANYONE)
    return app


async def test_every_kind_is_described_where_its_type_points(shared_app: FastAPI) -> None:
    """The address answers with the title, the status, and what to do."""
    for slug in KINDS:
        document = json.loads(Problem(slug, "x").response("/purgatory", "/purgatory/watch/k").body)
        async with _client(shared_app) as client:
            answer = await client.get(document["type"])
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        kind = KINDS[slug]
        for part in (kind.title, str(kind.status), slug, kind.remedy):
            assert part in answer.text


def test_the_document_has_the_members_of_rfc_9457() -> None:
    """And those of its own beside them."""
    problem = Problem("full", "no room", headers={"Retry-After": "3"}, limit="max_parked")
    answer = problem.response("/p", "/p/watch/k")
    assert json.loads(answer.body) == {
        "type": "/p/problems/full",
        "title": KINDS["full"].title,
        "status": 503,
        "detail": "no room",
        "instance": "/p/watch/k",
        "limit": "max_parked",
    }
    text = answer.encoded(b"")
    assert b"content-type: application/problem+json\r\n" in text
    assert b"cache-control: no-store\r\n" in text
    assert b"retry-after: 3\r\n" in text.lower()


def test_whatever_is_quoted_can_be_sent() -> None:
    """Clients send what no UTF-8 can hold; the refusal that quotes it is JSON all the same."""
    for text in ["\ud800", "\x00", "☂", "\n", '"', "\u2028"]:
        answer = Problem("bad-parameter", text, param=text).response("/p", text)
        assert json.loads(answer.body)["detail"] == text


def test_clients_are_not_told_why_a_store_fails() -> None:
    """The reason names hosts, users and statements."""
    for kind in [
        StoreError,
        StoreFullError,
        StoreNotReadyError,
        StoreReadOnlyError,
        StoreUnavailableError,
        errors.OwnershipUnavailableError,
        errors.SignalsNotReadyError,
        errors.SignalsUnavailableError,
    ]:
        reason = 'connecting to 10.1.2.3:6379: password of "shop" is wrong in INSERT INTO jobs'
        problem = problem_of_error(kind(reason))
        assert problem.status == 503 and len(problem.detail) > 15
        assert b"10.1.2.3" not in problem.response("/p", "/p/jobs").body


@cases(
    "error",
    [
        errors.InvalidTimeoutError("timeout is -1.0: give a number of seconds from 0 to 60"),
        errors.InvalidValueError("the value takes 70 bytes, more than the limit of 64: store it"),
        InvalidDeadlineError("delay is -1: give a number of seconds from 0 to 60"),
    ],
)
def test_an_error_that_says_what_is_allowed_says_it_once(error: PurgatoryError) -> None:
    """Its own sentence has the limits as they are; `allowed` is for programs."""
    problem = problem_of_error(error)
    assert problem.detail == error.detail and problem.members["allowed"]
    assert "bounded" not in problem.members["allowed"]


def test_a_full_disk_is_not_a_limit_of_jobs() -> None:
    """It refuses a cancellation, too, and waiting for jobs to end is no way out."""
    assert problem_of_error(StoreFullError.of_limit(1)).kind.slug == "jobs-full"
    problem = problem_of_error(StoreOutOfSpaceError("disk full"))
    assert problem.kind.slug == "store-unavailable"
    assert "another job" not in problem.detail


def test_every_error_of_the_library_is_a_refusal() -> None:
    """None of those that a request can cause is a 500."""
    for kind in ERRORS:
        if kind is errors.CursorExpiredError:
            error: PurgatoryError = errors.CursorExpiredError(key="k", earliest="0", head="1")
        elif kind is errors.LimitReachedError:
            error = errors.LimitReachedError(limit="max_parked", maximum=1)
        else:
            error = kind()
        problem = problem_of_error(error)
        # What only the application's own programming can cause.
        own_faults = {
            errors.PurgatoryError,
            errors.CursorError,
            errors.WrongThreadError,
            errors.SeveralWorkersError,
        }
        assert (problem.status == 500) is (kind in own_faults)
        assert problem.detail


def test_retry_after_is_jittered() -> None:
    """Clients that were refused together do not return together."""
    found = {(draining_problem().headers or {})["Retry-After"] for _ in range(200)}
    assert len(found) > 1
    assert all(1 <= int(seconds) <= 5 for seconds in found)


async def test_an_endpoint_may_raise_one(app: FastAPI) -> None:
    """Problem is public: raised in an endpoint, it is the answer."""

    @app.get("/refused")
    def refused() -> None:
        raise Problem("too-many-waits", "not today", headers={"Retry-After": "7"}, limit="mine")

    async with _client(app) as client:
        answer = await client.get("/refused")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["type"] == "/purgatory/problems/too-many-waits"
    assert answer.json()["limit"] == "mine"


async def test_one_without_our_handlers_is_an_http_exception() -> None:
    """Where the library is not installed it is what FastAPI makes of an HTTPException."""
    app = FastAPI()

    @app.get("/refused")
    def refused() -> None:
        raise Problem("full", "no room", headers={"Retry-After": "7"})

    async with _client(app) as client:
        answer = await client.get("/refused")
    assert (answer.status_code, answer.json()) == (503, {"detail": "no room"})
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("status", [400, 404, 418, 499, 599])
async def test_exceptions_of_the_application(app: FastAPI, status: int) -> None:
    """about:blank with the status's own phrase, also where HTTP has none."""

    @app.get("/refused")
    def refused() -> None:
        raise HTTPException(status, "because")

    async with _client(app) as client:
        answer = await client.get("/refused")
    document = answer.json()
    assert (answer.status_code, document["status"]) == (status, status)
    assert (document["type"], document["detail"]) == ("about:blank", "because")
    assert document["title"]


@cases("outcome", [None, JobOutcome.CANCELLED])
def test_a_job_that_is_decided_says_how(outcome: JobOutcome | None) -> None:
    """One that was decided and has yet to run has no outcome."""
    job = new_job(
        id="1",
        handler="note",
        payload_json="null",
        deadline_ms=3,
        due_ms=3,
        created_ms=1,
        state=JobState.RUNNING if outcome is None else JobState.CANCELLED,
        outcome=outcome,
    )
    problem = problem_of_error(JobConflictError(job, "fired"))
    assert problem.kind.slug == "job-decided"
    assert problem.members["outcome"] == (None if outcome is None else "cancelled")
