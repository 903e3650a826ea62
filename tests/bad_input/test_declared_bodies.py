"""Bodies that the schemas of endpoints do not allow, at every place of every body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.client import Connection
from tests.bad_input.declared import Body, Endpoint, Place, post
from tests.bad_input.refusals import check_refusal, errors_of

pytestmark = pytest.mark.usefixtures("nothing_is_done")

# Each is wrong at most places.
VALUES: list[Any] = [
    *(None, True, 0, -1, 5, 1.5, 10**30, 10**400, "x", "", "1", "nan"),
    *([], [None], [[]], ["k"], {}, {"a": 1}),
    *("tomorrow", "2027-01-01T00:00:00", "1795811493", "+1795811493.5", "-5"),
]
# In place of a value, for JSON that Python does not write.
HERE = "here"


def places_of(endpoints: list[Endpoint]) -> Iterator[tuple[Endpoint, Body, Place]]:
    for endpoint in endpoints:
        if endpoint.schema is not None:
            body = Body(endpoint.schema)
            yield from ((endpoint, body, place) for place in body.places())


def text_of(place: Place, value: str) -> bytes:
    return json.dumps(place.put(HERE)).replace(f'"{HERE}"', value).encode()


def wrong_values(body: Body, place: Place) -> Iterator[tuple[Any, list[str]]]:
    """Yield values that may be wrong at `place`, and what a refusal of each says."""
    choices = [json.dumps(one) for schema in place.schemas for one in schema.get("enum", ())]
    for value in VALUES:
        shown = "" if isinstance(value, (list, dict)) else json.dumps(value).strip('"')[:64]
        yield value, [*choices, shown]
    for schema in place.schemas:
        for bound, value in body.just_beyond(schema):
            yield value, [bound]


async def test_a_value_that_is_not_allowed(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """422 points at it, and names the field, the value and the limit."""
    for endpoint, body, place in places_of(endpoints):
        for value, words in wrong_values(body, place):
            document = place.put(value)
            if body.allows(document):
                continue
            case = f"{endpoint} with {place.pointer or 'the body'}: {str(value)[:64]}"
            reply = await post(connection, endpoint, json.dumps(document).encode())
            problem = check_refusal(reply, 422, "bad-parameter", case=case)
            pointers = [error["pointer"] for error in errors_of(problem)]
            assert all(each.startswith(place.pointer) for each in pointers), f"{case}: {problem}"
            assert problem["param"].startswith(place.param), f"{case}: {problem}"
            if pointers[0] == place.pointer:
                assert problem["param"] == (place.param or "body"), f"{case}: {problem}"
                missing = [word for word in words if word not in problem["detail"]]
                assert not missing, f"{case}: {problem} does not say {missing}"


async def test_a_member_that_is_unknown_missing_or_given_twice(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """422 points at the member, and names those that there are."""
    for endpoint, body, place in places_of(endpoints):
        for schema in place.schemas:
            members = body.members(schema)
            known = list(schema.get("properties", ()))
            for name in [*schema.get("required", ()), "colour", "a/b~c"]:
                is_missing = name in members
                wrong = {one: value for one, value in members.items() if one != name}
                if not is_missing:
                    wrong[name] = "red"
                document = place.put(wrong)
                if not members or body.allows(document):
                    continue
                case = f"{endpoint} with {name} at {place.pointer}"
                reply = await post(connection, endpoint, json.dumps(document).encode())
                words = ["it is missing"] if is_missing else ["no such field", ", ".join(known)]
                problem = check_refusal(reply, 422, "bad-parameter", *words, case=case)
                [error] = errors_of(problem)
                escaped = name.replace("~", "~0").replace("/", "~1")
                assert error["pointer"] == f"{place.pointer}/{escaped}", f"{case}: {problem}"
                param = ".".join(filter(None, (place.param, name)))
                assert problem["param"] == param, f"{case}: {problem}"
            for name, value in members.items():
                text = f"{json.dumps(members)[:-1]}, {json.dumps({name: value})[1:]}"
                case = f"{endpoint} with {name} twice at {place.pointer}"
                reply = await post(connection, endpoint, text_of(place, text))
                check_refusal(reply, 422, "bad-parameter", "twice", case=case)


async def test_numbers_that_json_has_not(connection: Connection, endpoints: list[Endpoint]) -> None:
    """NaN and the infinities are refused wherever they stand."""
    for endpoint, _, place in places_of(endpoints):
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999"):
            for value in (number, f"[1, {{}}, {number}]"):
                text = text_of(place, value)
                reply = await post(connection, endpoint, text)
                if reply.status == 200 and endpoint.name == "dashboard_actions":
                    # Each target has an error of its own.
                    assert not any(result["done"] for result in reply.json()["results"])
                    continue
                slug = "bad-json" if reply.status == 400 else "bad-parameter"
                status = 400 if reply.status == 400 else 422
                check_refusal(reply, status, slug, case=f"{endpoint} with {text!r}")


async def test_a_lone_surrogate(connection: Connection, endpoints: list[Endpoint]) -> None:
    """400: it is no text that UTF-8 could hold, as a value or as a name."""
    for endpoint, _, place in places_of(endpoints):
        for escape in ("\\ud800", "\\udc00", "\\ud83d\\ud83d", "\\ud83dx"):
            for value in (f'"{escape}"', f'{{"{escape}": null}}'):
                text = text_of(place, value)
                reply = await post(connection, endpoint, text)
                check_refusal(reply, 400, "bad-json", case=f"{endpoint} with {text!r}")
