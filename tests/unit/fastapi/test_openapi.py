"""What the API's documentation says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from purgatory import Limits, Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    WaitSettings,
    create_health_router,
    create_router,
    install,
)
from purgatory.fastapi.http.json_bodies import KEY_PATTERN, ProblemDetails
from purgatory.fastapi.http.responses import KINDS
from purgatory.fastapi.jobs.schemas import JobBody, RescheduleBody
from purgatory.fastapi.keys import BatchItem, SignalBody
from purgatory.fastapi.router import StatisticsResponse
from purgatory.fastapi.routing.routes import problem_responses
from purgatory.fastapi.watch.request_parser import ETAG_CURSOR_PATTERN, WatchBody
from purgatory.jobs import JobLimits, MemoryJobStore
from tests.cases import cases
from tests.needs import DESCRIBED_DATACLASSES

PROBLEM = "application/problem+json"
METHODS = {"get", "post", "put", "patch", "delete", "options", "head"}

# What generated clients call each operation, and so it does not change; and what it may refuse:
# 422 stands for all of them.
OPERATIONS = {
    "get /purgatory/watch/{key}": ("watch_key", {400, 409, 410, 422, 429, 503}),
    "get /purgatory/watch": ("follow_keys", {400, 409, 410, 422, 429, 503}),
    "get /purgatory/purgatory.js": ("javascript", {422}),
    "post /purgatory/watch": ("watch_keys", {400, 409, 410, 413, 415, 422, 429, 503}),
    "delete /purgatory/waits/{id}": ("cancel_wait", {404, 422}),
    "post /purgatory/keys/{key}": ("fire_key", {400, 413, 415, 422, 503}),
    "post /purgatory/keys": ("fire_keys", {400, 413, 415, 422, 503}),
    "get /purgatory/keys/{key}": ("describe_key", {422}),
    "delete /purgatory/keys/{key}": ("drop_key", {422, 503}),
    "get /purgatory/keys": ("list_keys", {422}),
    "post /purgatory/jobs": ("add_job", {400, 409, 410, 413, 415, 422, 503}),
    "get /purgatory/jobs": ("list_jobs", {422, 503}),
    "post /purgatory/jobs:batch": ("add_jobs", {413, 415, 422, 503}),
    "get /purgatory/jobs/{id}": ("get_job", {404, 422, 429, 503}),
    "patch /purgatory/jobs/{id}": ("reschedule_job", {400, 404, 409, 412, 413, 415, 422, 503}),
    "delete /purgatory/jobs/{id}": ("cancel_job", {404, 409, 422, 503}),
    "post /purgatory/jobs/{id}/run": ("run_job", {404, 409, 412, 415, 422, 503}),
    "post /purgatory/jobs/{id}/retry": ("retry_job", {404, 409, 412, 415, 422, 503}),
    "post /purgatory/jobs:retry": ("retry_jobs", {415, 422, 503}),
    "get /purgatory/jobs:paused": ("paused_handlers", {422, 503}),
    "post /purgatory/jobs:pause": ("pause_handler", {415, 422, 503}),
    "post /purgatory/jobs:resume": ("resume_handler", {415, 422, 503}),
    "get /purgatory/waits": ("list_waits", {401, 403, 422, 503}),
    "get /purgatory/dashboard": ("dashboard", {422}),
    "get /purgatory/dashboard/snapshot": ("dashboard_snapshot", {401, 403, 422, 503}),
    "post /purgatory/dashboard/actions": ("dashboard_actions", {400, 401, 403, 413, 415, 422}),
    "get /purgatory/dashboard/static/{file}": ("dashboard_file", {404, 422}),
    "get /purgatory/statistics": ("statistics", {422}),
    "get /purgatory/problems/{slug}": ("problem", {404, 422}),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of an application with everything that the library offers."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(
        app,
        purgatory,
        settings=WaitSettings(default_wait=7.0, max_wait=11.0),
        authorize=ALLOW_ANYONE,
    )
    app.include_router(create_health_router(purgatory))
    found: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    return found


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield f"{method} {path}", operation


def _references(node: Any) -> Iterator[str]:
    match node:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for child in node.values():
                yield from _references(child)
        case list():
            for child in node:
                yield from _references(child)


def test_every_operation_says_what_it_does(document: dict[str, Any]) -> None:
    """A summary, a description, a tag."""
    for name, operation in _operations(document):
        assert operation["summary"], name
        assert operation["description"].strip().endswith("."), name
        assert operation["tags"], name


def test_operation_ids_are_names_that_a_person_would_give(document: dict[str, Any]) -> None:
    """And no operation is missing in the table."""
    ids = {name: operation["operationId"] for name, operation in _operations(document)}
    expected = {name: operation_id for name, (operation_id, _) in OPERATIONS.items()}
    assert ids == expected | {"get /healthz": "healthz", "get /readyz": "readyz"}


def test_an_idempotency_key_says_for_how_long_it_holds(document: dict[str, Any]) -> None:
    """As long as a job, or ten minutes."""
    said = {
        operation["operationId"]: parameter["description"]
        for _, operation in _operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "idempotency-key"
    }
    of_jobs = {"add_job", "add_jobs"}
    assert said.keys() == {"fire_key", "fire_keys", *of_jobs}
    assert all(("the job is kept" in words) == (name in of_jobs) for name, words in said.items())
    assert all(("ten minutes" in words) != (name in of_jobs) for name, words in said.items())


def test_operation_ids_under_another_prefix() -> None:
    """They begin with it."""
    app = FastAPI()
    app.include_router(
        create_router(Purgatory(), prefix="/wait/here", authorize=ALLOW_ANYONE), prefix="/v2"
    )
    ids = {operation["operationId"] for _, operation in _operations(app.openapi())}
    assert "v2_wait_here_watch_key" in ids
    assert all(name.startswith("v2_wait_here_") for name in ids)


def test_operation_ids_are_unique_under_two_prefixes() -> None:
    """A router that is included twice has two of each."""
    app, router = FastAPI(), create_router(Purgatory(jobs=MemoryJobStore()), authorize=ALLOW_ANYONE)
    app.include_router(router)
    app.include_router(router, prefix="/v2")
    ids = [operation["operationId"] for _, operation in _operations(app.openapi())]
    assert len(set(ids)) == len(ids) == 2 * len(OPERATIONS)


def test_every_refusal_is_documented_as_problem_details(document: dict[str, Any]) -> None:
    """Its status, with the media type that it really has and no other; the body once for all."""
    for name, (_, statuses) in OPERATIONS.items():
        operation = dict(_operations(document))[name]
        refusals = {
            int(status): response
            for status, response in operation["responses"].items()
            if status.isdigit() and int(status) >= 400
        }
        assert statuses <= refusals.keys(), name
        for status, response in refusals.items():
            assert list(response["content"]) == [PROBLEM], (name, status)
            assert "`" in response["description"], "the kinds of problems are named"
        content = operation["responses"]["default"]["content"]
        assert list(content) == [PROBLEM], name
        ProblemDetails.model_validate(content[PROBLEM]["example"])
        assert set(content[PROBLEM]["schema"]["required"]) == content[PROBLEM]["example"].keys()


@cases("count", [1, 2, 3])
def test_the_description_of_a_status_names_each_of_its_problems(count: int) -> None:
    """As a list in Markdown."""
    slugs = [slug for slug, kind in KINDS.items() if kind.status == 503][:count]
    lines = problem_responses(*slugs)[503]["description"].splitlines()
    assert all(line.startswith(f"- `{slug}`: ") for line, slug in zip(lines, slugs, strict=True))


def test_answers_are_documented(document: dict[str, Any]) -> None:
    """In words of their own, with a schema, or without a body where there is none."""
    for name, operation in _operations(document):
        for status, response in operation["responses"].items():
            if status in ("204", "304"):
                assert "content" not in response, name
            elif status.startswith("2"):
                assert response["content"], name
            assert response["description"] not in ("", "Successful Response", "Error"), name


def _parameters(document: dict[str, Any], name: str) -> dict[str, Any]:
    operation = dict(_operations(document))[name]
    return {parameter["name"].lower(): parameter for parameter in operation["parameters"]}


def test_the_parameters_of_watching_a_key(document: dict[str, Any]) -> None:
    """All of them, each with a description; `wait` says its units, default and maximum."""
    parameters = _parameters(document, "get /purgatory/watch/{key}")
    places = {name: parameter["in"] for name, parameter in parameters.items()}
    assert places == {
        "key": "path",
        "cursor": "query",
        "wait": "query",
        "limit": "query",
        "min": "query",
        "if-none-match": "header",
        "prefer": "header",
        "wait-id": "header",
        "last-event-id": "header",
    }
    for name, parameter in parameters.items():
        assert parameter.get("description"), name
        assert parameter["required"] is (name == "key")
    wait = parameters["wait"]["description"]
    for word in ("500ms", "25s", "1m", "7 s", "11 s", "0 asks"):
        assert word in wait, wait
    assert parameters["wait"]["schema"]["default"] == "7"


def test_bounds_of_keys_and_tags_are_declared(document: dict[str, Any]) -> None:
    """What is refused is no surprise to those who read the document."""
    listing = _parameters(document, "get /purgatory/jobs")
    for name in ("handler", "key"):
        [schema] = [part for part in listing[name]["schema"]["anyOf"] if part["type"] == "string"]
        assert (schema["minLength"], schema["maxLength"]) == (1, 256)
        assert schema["pattern"] == KEY_PATTERN
    etag = _parameters(document, "get /purgatory/watch/{key}")["if-none-match"]["schema"]
    assert etag["anyOf"][0]["pattern"] == ETAG_CURSOR_PATTERN


@DESCRIBED_DATACLASSES
def test_every_object_is_described(document: dict[str, Any]) -> None:
    """Older versions of pydantic leave out what dataclasses say of themselves."""
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    """In words; what is an object of its own is described there."""
    for schema_name, schema in document["components"]["schemas"].items():
        for name, field in schema.get("properties", {}).items():
            assert field.get("description") or "$ref" in field, (schema_name, name)
    for name, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (name, parameter["name"])


def test_examples_fit_what_they_are_examples_of(document: dict[str, Any]) -> None:
    """Whoever tries one out is not refused."""
    for model in (SignalBody, BatchItem, WatchBody, JobBody, RescheduleBody):
        schema = document["components"]["schemas"][model.__name__]
        [example] = schema["examples"]
        model.model_validate_json(json.dumps(example))


async def test_the_statistics_are_what_is_documented_of_them() -> None:
    """Neither more nor less."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory, authorize=ALLOW_ANYONE)
    async with purgatory, AsyncClient(transport=ASGITransport(app), base_url="http://h") as client:
        answer = (await client.get("/purgatory/statistics")).json()
    documented = StatisticsResponse.model_validate_json(json.dumps(answer), strict=True)
    assert documented.model_dump(mode="json") == answer


def test_bodies_are_documented(document: dict[str, Any]) -> None:
    """Those that have to be there, and the one that may."""
    operations = dict(_operations(document))
    for name, is_required in (
        ("post /purgatory/watch", True),
        ("post /purgatory/keys", True),
        ("post /purgatory/keys/{key}", False),
        ("post /purgatory/jobs", True),
        ("patch /purgatory/jobs/{id}", True),
        ("post /purgatory/jobs:batch", True),
    ):
        body = operations[name]["requestBody"]
        assert body.get("required", False) is is_required, name
        media_type = "application/jsonl" if name.endswith(":batch") else "application/json"
        assert list(body["content"]) == [media_type]


def test_headers_of_answers_are_documented(document: dict[str, Any]) -> None:
    """A client generator knows of the cursor in the ETag, and of Retry-After."""
    responses = dict(_operations(document))["get /purgatory/watch/{key}"]["responses"]
    assert "ETag" in responses["200"]["headers"]
    assert "Purgatory-Cursor" in responses["204"]["headers"]
    for status in ("429", "503"):
        assert "Retry-After" in responses[status]["headers"]
    responses = dict(_operations(document))["post /purgatory/watch"]["responses"]
    assert "Preference-Applied" in responses["200"]["headers"]
    assert {"Preference-Applied", "Purgatory-Cursor"} <= set(responses["204"]["headers"])


def test_bounds_are_those_of_the_limits() -> None:
    """Of what was raised or lowered, not of what is so by default; each purgatory has its own."""
    app = FastAPI()
    for prefix, maximum in (("/a", 500), ("/b", 5)):
        limits = Limits(
            max_keys_per_operation=maximum,
            max_value_bytes=maximum * 10,
            max_signals_per_key=maximum,
        )
        job_limits = JobLimits(max_keys=maximum, max_payload_bytes=7, max_attempts=maximum)
        store = MemoryJobStore(limits=job_limits)
        purgatory = Purgatory(limits=limits, jobs=store)
        app.include_router(create_router(purgatory, prefix=prefix, authorize=ALLOW_ANYONE))
    document = json.loads(json.dumps(app.openapi()))
    operations = dict(_operations(document))
    for prefix, maximum in (("/a", 500), ("/b", 5)):
        watch = _body_schema(document, operations[f"post {prefix}/watch"])["properties"]
        assert (watch["keys"]["maxProperties"], watch["min"]["maximum"]) == (maximum, maximum)
        parameters = _parameters(document, f"get {prefix}/watch/{{key}}")
        assert parameters["min"]["schema"]["maximum"] == maximum
        fire = _body_schema(document, operations[f"post {prefix}/keys/{{key}}"])["properties"]
        assert f"{maximum * 10} bytes" in fire["value"]["description"]
        job = _body_schema(document, operations[f"post {prefix}/jobs"])["properties"]
        assert (job["keys"]["maxItems"], job["max_attempts"]["maximum"]) == (maximum, maximum)
        assert job["max_attempts"]["default"] == min(10, maximum)
        assert "7 bytes" in job["payload"]["description"]


def _body_schema(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    [reference] = _references(schema)
    found: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found
