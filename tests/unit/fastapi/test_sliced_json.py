"""Large JSON documents: the same values and errors as of small ones, a piece at a time."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import turn_budget
from purgatory.fastapi.dashboard.wait_list import actions_json
from purgatory.fastapi.http import json_bodies
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.responses import Problem
from purgatory.fastapi.jobs.schemas import job_json
from purgatory.fastapi.keys import batch_json, signal_json
from purgatory.fastapi.watch.schemas import watch_json
from purgatory.jobs import JobLimits
from purgatory.json_value import MAX_DOCUMENT_DEPTH
from purgatory.limits import Limits
from tests.cases import cases

LIMITS = Limits(max_value_bytes=2_000)
JOB_LIMITS = JobLimits(max_payload_bytes=2_000)
ANY = JsonBody[Any](Any, max_bytes=10_000, max_value_bytes=2_000)
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


def _end(parse: Callable[[bytes], Any], text: bytes) -> Any:
    """Return what is parsed, with the types of all numbers, or the kind of the problem."""
    try:
        parsed = parse(text)
    except Problem as problem:
        return problem.kind.slug
    return parsed, repr(parsed)


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is small."""
    monkeypatch.setattr(json_bodies, "MAX_COMMAS", -1)
    monkeypatch.setattr(json_bodies, "PIECE", 12)


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("name", BODIES)
@given(data=st.data(), indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
def test_pieces_are_parsed_as_the_whole(
    name: str, data: st.DataObject, indent: int | None, *, is_ascii: bool
) -> None:
    """The same value of each endpoint's body; or a problem where there is one, and no other."""
    body, names = BODIES[name]
    document = data.draw(documents(names))
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "replace")
    assert _end(body.parse, text) == _end(body.parse_small, text)


@pytest.mark.usefixtures("tiny_pieces")
@given(data=st.data(), document=documents(["a", "b"]))
def test_what_is_no_json_is_refused_in_pieces(data: st.DataObject, document: Any) -> None:
    """Whatever is left out, put in or doubled."""
    text = json.dumps([document, 1, {"a": [], "b": "\ud83d\ude00"}])
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(["", *',:[]{}"\\ 0-.e\n', "\\ud800", "NaN", "00", "\ufeff"]))
    changed = (text[:at] + other + text[at + len(other) :]).encode()
    # pydantic takes NaN and Infinity, which the endpoints refuse later.
    is_constant = b"NaN" in changed or b"Infinity" in changed
    end, of_whole = _end(ANY.parse, changed), _end(ANY.parse_small, changed)
    assert end == of_whole or (is_constant and end == "bad-json") or _is_first(end, of_whole)


def _is_first(end: Any, of_whole: Any) -> bool:
    """Of two faults, pieces name the first: a name given twice, before the JSON breaks off."""
    return (end, of_whole) == ("bad-parameter", "bad-json")


@pytest.mark.usefixtures("tiny_pieces")
def test_of_two_faults_the_first_is_named() -> None:
    """What follows need not be read."""
    text = b'[{"a": 1, "a": 2}, 1, {"a": [], "b": ]]'
    assert _end(ANY.parse, text) == "bad-parameter"
    assert _end(ANY.parse_small, text) == "bad-json"


@cases(
    "text",
    [
        '[,"' + 3_000 * "x" + '"' + 1_100 * ",1" + "]",
        "[" + 1_100 * "1," + ',"' + 3_000 * "x" + '"]',
        '{,"' + 3_000 * "x" + '":1' + "".join(f',"{i}":1' for i in range(1_100)) + "}",
    ],
)
def test_a_comma_with_nothing_before_it_is_no_json(text: str) -> None:
    """Also before an item that is longer than a piece; so many items may be refused before."""
    assert _end(ANY.parse, text.encode()) in ("bad-json", "bad-parameter")


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("brackets", ["[]", "[{}]", '[{"a":[]}]', "[1,[]]"])
def test_levels_are_bounded(brackets: str) -> None:
    """As in small bodies: by the limit of a value, and not by a parser's own."""
    opening, _, closing = brackets.partition("[]" if "[]" in brackets else "{}")
    for levels in (MAX_DOCUMENT_DEPTH - 4, MAX_DOCUMENT_DEPTH + 1, 300, 30_000):
        text = "[" * levels + opening + "[]" + closing + "]" * levels
        if levels < MAX_DOCUMENT_DEPTH:
            assert ANY.parse(text.encode()) == json.loads(text)
        else:
            with pytest.raises(Problem, match="more than 64 lists and objects within each other"):
                ANY.parse(text.encode())


NAMES = ",".join(f'"{n:x}":1' for n in range(50_000))
ITEMS = ",".join(["[],{}"] * 50_000)


@cases(
    "name, text, detail",
    [
        ("signal", f"{{{NAMES}}}", "/0: there is no such field"),
        ("signal", f'{{"value":[{ITEMS}]}}', "/value: it takes more than 2000 bytes"),
        ("signal", f'{{"value":{{{NAMES}}}}}', "/value: it takes more than 2000 bytes"),
        ("batch", f"[{ITEMS}]", "the body: it has more than 1000 items"),
        ("batch", f"[{{{NAMES}}}]", "/0/0: there is no such field"),
        ("batch", "[" + '{"key":"k"},' * 5_000 + "1]", "the body: it has more than 1000 items"),
        ("batch", "[" + '{"key":"k","x":1},' * 5_000 + "1]", "/0/x: there is no such field"),
        ("batch", f'[{{"key":[{ITEMS}]}}]', "/0/key: it is a list"),
        ("watch", f'{{"keys":{{{NAMES}}}}}', "/keys: it has more than 100 names"),
        ("watch", f'{{"keys":{{"k":[{ITEMS}]}}}}', "/keys/k: it is a list"),
        ("watch", f'{{"until":{{{NAMES}}}}}', "/until/0: there is no such field"),
        ("job", f'{{"keys":[{"1," * 5_000}1]}}', "/keys: it has more than 100 items"),
        ("job", f'{{"since":{{{NAMES}}}}}', "/since: it has more than 100 names"),
        ("job", f'{{"callback":{{"headers":{{{NAMES}}}}}}}', "/callback/headers: it has more than"),
        ("actions", f'{{"targets":[{"1," * 5_000}1]}}', "/targets: it has more than 500 items"),
    ],
)
def test_counts_are_bounded_before_they_are_built(name: str, text: str, detail: str) -> None:
    """No more of a body is decoded than is allowed."""
    body, _ = BODIES[name]
    steps = body._steps(text.encode())
    with pytest.raises(Problem, match=detail) as refusal:
        collections.deque(itertools.islice(steps, 600), 0)
    assert len(refusal.value.members["errors"]) == 1


async def test_a_large_value_is_decoded_over_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pieces a turn at most, if those end whenever they may."""
    monkeypatch.setattr(turn_budget, "TURN_NS", 0)
    text = ('{"value":[' + ",".join(["{}"] * 20_000) + "]}").encode()
    parsing = asyncio.ensure_future(signal_json(Limits()).parse_in_turns(text))
    turns = 0
    while not parsing.done():
        turns += 1
        await asyncio.sleep(0)
    assert parsing.result().value == [{}] * 20_000
    assert turns >= len(text) // (2 * json_bodies.PIECE)
