"""Every operation of OpenAPI, asked with every scope about something that another client has."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from tests.acceptance.client import Reply
from tests.cases import cases
from tests.nightly import NIGHTLY
from tests.security.permissions import (
    ANONYMOUS,
    CASES,
    EVERYONE,
    NOBODY,
    SCOPES,
    SECRET,
    Case,
    Target,
)
from tests.security.victims_world import (
    TOKENS,
    World,
    create_application,
    create_service,
    in_process,
    is_refused,
    on_parking_protocol,
    shape,
)

CHALLENGES = {401: "Bearer", 403: 'Bearer error="insufficient_scope"'}
METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
ATTACKERS = (*ANONYMOUS, *SCOPES)
IDS = [f"{case.operation}: {case.name}" for case in CASES]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the clients on uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(
    scope="module",
    # Who decides has nothing to do with the protocol: by day, each is served in one way.
    params=[
        pytest.param((create_service, on_parking_protocol), id="service-parking"),
        pytest.param((create_application, in_process), id="application"),
        pytest.param((create_service, in_process), id="service", marks=NIGHTLY),
    ],
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The service with tokens, and an application with an `authorize` of its own."""
    create, serve = request.param
    async with serve(create()) as opened:
        yield opened


def _expected(case: Case, world: World) -> Case:
    """Return the case as it is where the application decides by itself.

    It names each client, none of which share dedupe keys, and decides once for a whole job.
    """
    if world.has_tokens:
        return case
    if case.thing == "shared job":
        return dataclasses.replace(case, sees=NOBODY, changes=NOBODY)
    return dataclasses.replace(case, shown=None)


async def _ask(world: World, case: Case, target: Target, label: str) -> tuple[Reply, list[str]]:
    token = {"no token": None, "unknown token": "token-that-nobody-has"}.get(label)
    reply = await world.request(case, target, TOKENS.get(label, token))
    return reply, list(world.store.asked)


@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_who_may_do_it_and_what_others_learn(world: World, case: Case) -> None:
    """Nothing: refusals are the same, byte by byte, whether the thing exists or not."""
    case = _expected(case, world)
    # Those who may change it come last: until then, nothing has changed.
    labels = sorted(ATTACKERS, key=lambda label: label in case.changes)
    shown = case.sees if case.shown is None else case.shown
    found: dict[str, object] = {}
    target = await world.make(case.thing)
    before = await world.snapshot(target)
    for label in labels:
        reply, asked = await _ask(world, case, target, label)
        assert is_refused(reply) is (label not in case.allowed), (label, reply)
        if is_refused(reply):
            assert asked == [] and (reply.status == 401) is (label in ANONYMOUS), label
        if reply.status in (401, 403) and world.has_tokens:
            assert reply.headers["www-authenticate"] == CHALLENGES[reply.status]
            assert reply.headers["content-type"] == "application/problem+json"
        assert SECRET.encode() not in reply.body or label in shown, (label, reply)
        found[label] = shape(reply), asked
        if label in case.changes:
            await world.reset()
            target = await world.make(case.thing)
            before = await world.snapshot(target)
        else:
            assert await world.snapshot(target) == before, label
            if not is_refused(reply):
                await world.remove_attackers_things(target)
    await world.reset()
    for label in labels:
        reply, asked = await _ask(world, case, Target(), label)
        assert label in case.sees or (shape(reply), asked) == found[label], label
        if not is_refused(reply):
            await world.remove_attackers_things()


@cases("case", [case for case in CASES if case.is_documented])
async def test_what_invalid_requests_learn(world: World, case: Case) -> None:
    """Nothing either, whichever fault is reported first."""
    case = _expected(case, world)
    faulty = [dataclasses.replace(case, query="?unknown=1")]
    if case.body is not None:
        faulty.append(dataclasses.replace(case, body=lambda target: ["unknown"]))
    labels = [label for label in ATTACKERS if label not in case.sees]
    target = await world.make(case.thing)
    before = await world.snapshot(target)
    found = [
        shape((await _ask(world, bad, target, label))[0]) for bad in faulty for label in labels
    ]
    assert await world.snapshot(target) == before
    await world.reset()
    unknown = Target()
    assert found == [
        shape((await _ask(world, bad, unknown, label))[0]) for bad in faulty for label in labels
    ]


@cases("case", [case for case in CASES if case.is_documented])
async def test_other_methods(world: World, case: Case) -> None:
    """405, or 404, without a token and whatever exists."""
    path = world.operations[case.operation][1]
    allowed = {method for method, known, _ in world.operations.values() if known == path}
    # Of health checks, which browsers and balancers send.
    allowed |= {"HEAD"} if case.thing == "nothing" else set()
    target = await world.make(case.thing)
    found = [await _refused(world, case, target, method) for method in METHODS - allowed]
    await world.reset()
    assert found == [await _refused(world, case, Target(), method) for method in METHODS - allowed]


async def _refused(world: World, case: Case, target: Target, method: str) -> object:
    reply = await world.request(case, target, None, method=method)
    assert (reply.status, world.store.asked) == (405, []), (method, reply)
    return shape(reply)


async def test_the_table_has_every_operation(world: World) -> None:
    """With each type of body: a new one is decided on before it lands."""
    known: dict[str, set[str]] = {}
    for case in CASES:
        known.setdefault(case.operation, set())
        if case.body is not None:
            known[case.operation].add(case.media_type)
    found = {
        name: set(operation.get("requestBody", {}).get("content", ()))
        for name, (_, _, operation) in world.operations.items()
    }
    assert found == known


async def test_what_openapi_says_of_tokens(world: World) -> None:
    """401 and 403 are documented where a token is needed, and only there."""
    for case in CASES:
        responses = world.operations[case.operation][2]["responses"]
        is_open = case.allowed == EVERYONE
        assert ("401" in responses, "403" in responses) == (not is_open, not is_open), case
