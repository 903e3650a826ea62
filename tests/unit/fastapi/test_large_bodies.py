"""Large JSON documents: the same values and errors as of small ones, within bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import turn_budget
from purgatory.fastapi.dashboard.routes import actions_json
from purgatory.fastapi.http import json_bodies
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.responses import Problem
from purgatory.fastapi.jobs.schemas import job_json
from purgatory.fastapi.keys import batch_json, signal_json
from purgatory.fastapi.watch.request_parser import watch_json
from purgatory.jobs import JobLimits
from purgatory.json_value import MAX_DOCUMENT_DEPTH
from purgatory.limits import Limits
from tests.cases import cases

LIMITS = Limits(max_value_bytes=2_000)
JOB_LIMITS = JobLimits(max_payload_bytes=2_000)
ANY = JsonBody[Any](Any, max_bytes=10_000)
BODIES: dict[str, tuple[JsonBody[Any], list[str]]] = {
    "any": (ANY, ["a", "b"]),
    "signal": (signal_json(LIMITS), ["value", "valu"]),
    "batch": (batch_json(LIMITS), ["key", "value", "x"]),
    "watch": (watch_json(LIMITS), ["keys", "wait", "until", "limit", "min", "count"]),
    "job": (
        job_json(JOB_LIMITS),
        ["handler", "callback", "url", "headers", "payload", "delay", "at", "keys", "since"],
    ),
    "actions": (actions_json(2_000), ["action", "targets", "value"]),
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["any", "all", "fire", "run", "k", "2026-11-21T15:04:05Z", "[{", '"],['])
    | st.text(max_size=20)
)


def documents(names: list[str]) -> st.SearchStrategy[Any]:
    """Return documents of any shape, with names that a schema has."""
    name = st.sampled_from(names) | st.text(max_size=5)
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(name, inner, max_size=6),
        max_leaves=30,
    )


def _end(body: JsonBody[Any], text: bytes) -> Any:
    """Return what is parsed, with the types of all numbers, or the kind of the problem."""
    try:
        parsed = asyncio.run(body.parse_in_turns(text))
    except Problem as problem:
        return problem.kind.slug
    return parsed, repr(parsed)


def _end_of_large(body: JsonBody[Any], text: bytes) -> Any:
    """Return the same, if no document is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bodies, "MAX_COMMAS", -1)
        return _end(body, text)


@pytest.mark.parametrize("name", BODIES)
@given(data=st.data(), indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
def test_large_bodies_are_parsed_as_small_ones(
    name: str, data: st.DataObject, indent: int | None, *, is_ascii: bool
) -> None:
    """The same value of each endpoint's body; or a problem where there is one, and no other."""
    body, names = BODIES[name]
    document = data.draw(documents(names))
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "replace")
    end = _end_of_large(body, text)
    if body.item is not None and not (isinstance(document, list) and document):
        # Another document is not looked into, and an empty list is never large.
        assert end == "bad-json"
        end = "bad-parameter"
    assert end == _end(body, text)


@pytest.mark.parametrize("name", ["any", "batch"])
@given(data=st.data(), document=documents(["key", "value"]))
def test_what_is_no_json_is_refused(name: str, data: st.DataObject, document: Any) -> None:
    """Whatever is left out, put in or doubled."""
    items = [{"key": "k", "value": document}, {"value": "\ud83d\ude00", "key": "[{,"}]
    text = json.dumps(items)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(["", *',:[]{}"\\ 0-.e\n', "\\ud800", "NaN", "00", "\ufeff"]))
    changed = (text[:at] + other + text[at + len(other) :]).encode()
    body, _ = BODIES[name]
    # As text: NaN is not equal to itself.
    end, of_small = str(_end_of_large(body, changed)), str(_end(body, changed))
    # Of two faults, that of an earlier item or name is reported.
    assert end == of_small or {end, of_small} == {"bad-parameter", "bad-json"}


@cases(
    "name, text", [("any", "[,1]"), ("batch", "[,]"), ("batch", '[{"key":"k"},]'), ("batch", "[]]")]
)
def test_a_comma_with_nothing_beside_it_is_no_json(name: str, text: str) -> None:
    """Nor is what follows the end."""
    assert _end_of_large(BODIES[name][0], text.encode()) == "bad-json"


@given(
    names=st.lists(st.sampled_from([r"\"", r"\u0022", r"\\", "u0022", "A", r"\u0041"]), max_size=4),
    value=st.lists(
        st.sampled_from([r"\"", r"\u0022", r"\\", r"\\u0022", "u0022", r"\/"]), max_size=4
    ),
)
def test_a_name_that_is_given_twice_is_found(names: list[str], value: list[str]) -> None:
    """However its quotes, or those of other texts, are written."""
    members = ",".join(f'"{name}":"{"".join(value)}"' for name in names)
    text = f"{{{members}}}".encode()
    assert _end_of_large(ANY, text) == _end(ANY, text)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("brackets", ["[]", "[{}]", '[{"a":[]}]', "[1,[]]"])
def test_levels_are_bounded(brackets: str, *, is_large: bool) -> None:
    """By the limit of a value, and not by a parser's own."""
    opening, _, closing = brackets.partition("[]" if "[]" in brackets else "{}")
    more = "," * 1_100 if is_large else ""
    for levels in (MAX_DOCUMENT_DEPTH - 4, MAX_DOCUMENT_DEPTH + 200, 300, 30_000):
        text = "[" * levels + opening + f'["{more}"]' + closing + "]" * levels
        if levels < MAX_DOCUMENT_DEPTH:
            assert ANY.parse(text.encode()) == json.loads(text)
        else:
            with pytest.raises(Problem, match="more than 64 lists and objects within each other"):
                ANY.parse(text.encode())


NAMES = ",".join(f'"{n:x}":1' for n in range(5_000))
MANY_NAMES = ",".join(f'"{n:x}":1' for n in range(50_000))
ITEMS = ",".join(["[],{}"] * 50_000)
TWICE = ",".join(f'"{n:x}":{{}}' for n in [*range(5_000), 4_000])


@cases(
    "name, text, detail",
    [
        ("signal", f"{{{NAMES}}}", "the body: it has more than 1 names; allowed: .* value"),
        ("signal", f'{{"value":[{ITEMS}]}}', "it takes 300[0-9]{3} bytes as compact JSON, more"),
        ("signal", f"{{{MANY_NAMES}}}", "compact JSON, more than 98304: store large values"),
        ("signal", f'{{"value":{{{TWICE}}}}}', "a name is given twice in one object"),
        ("batch", "[" + '{"key":"k"},' * 5_000 + "1]", "the body: it has more than 1000 items"),
        ("batch", f"[{ITEMS}]", "/0: it is a list"),
        ("batch", f'[{{"key":"k"}},{{{NAMES}}}]', "/1: it has more than 2 names"),
        ("batch", "[" + '{"key":"k"},' * 900 + '{"key":"k","x":[1' + ",1" * 200 + "]}]", "/900/x:"),
        ("batch", f'[{{"key":"k","value":[{ITEMS}]}}]', "/0: it takes 300[0-9]{3} bytes"),
        ("batch", f'[{{"key":"k"}},"{"," * 1_000}\\"', "the list does not end"),
        ("watch", f'{{"keys":{{{NAMES}}}}}', "/keys: it has more than 100 names"),
        ("watch", f'{{"until":{{{NAMES}}}}}', "/until: it has more than 1 names"),
        ("job", f'{{"keys":[{"1," * 5_000}1]}}', "/keys: .* at most 100 items"),
        ("job", f'{{"since":{{{NAMES}}}}}', "/since: it has more than 100 names"),
        ("job", f'{{"callback":{{"headers":{{{NAMES}}}}}}}', "/callback/headers: it has more than"),
        (
            "actions",
            f'{{"action":"fire","targets":[{"1," * 5_000}1]}}',
            "/targets: .* at most 500 items",
        ),
    ],
)
async def test_counts_are_bounded(name: str, text: str, detail: str) -> None:
    """One error says so: pydantic would report each name."""
    body, _ = BODIES[name]
    with pytest.raises(Problem, match=detail) as refusal:
        await body.parse_in_turns(text.encode())
    assert len(refusal.value.members.get("errors", [1])) == 1


async def test_a_large_batch_is_parsed_over_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each item and each few of their parts, if turns end whenever they may."""
    monkeypatch.setattr(turn_budget, "TURN_NS", 0)
    parts = ",".join(['"[,]\\"{"'] * 20_000)
    items = [f'{{"key":"k","value":{n}}}' for n in range(900)]
    text = "[" + ",".join([*items, f'{{"key":"k","value":[{parts}]}}']) + "]"
    parsing = asyncio.ensure_future(
        batch_json(Limits(max_value_bytes=200_000)).parse_in_turns(text.encode())
    )
    turns = 0
    while not parsing.done():
        turns += 1
        await asyncio.sleep(0)
    assert [item.value for item in parsing.result()[:-1]] == [*range(900)]
    assert parsing.result()[-1].value == ['[,]"{'] * 20_000
    assert turns >= 900 + 40_000 // 500
