"""Whatever comes, the parsers return something that makes sense or raise Problem."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from purgatory import Limits, Purgatory, PurgatoryError
from purgatory.fastapi import BearerTokens, Problem, WaitSettings
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import JsonBody, pointer
from purgatory.fastapi.http.parameters import (
    MAX_LIMIT,
    ParameterErrors,
    WholeNumber,
    parse_entity_tags,
    parse_idempotency_key,
    parse_preferences,
    read_query,
    wait_seconds,
)
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.keys import MAX_BATCH, KeyEndpoints, batch_json, signal_json
from purgatory.fastapi.watch.request_parser import (
    WatchParser,
    parse_etag_cursor,
    parse_wait_id,
    watch_json,
)
from tests.cases import cases

Result = TypeVar("Result")

PURGATORY = Purgatory()
SETTINGS = WaitSettings()
PARSER = WatchParser(PURGATORY, SETTINGS)
QUERY = frozenset({"cursor", "wait", "limit", "min"})
NUMBER: TypeAdapter[int] = TypeAdapter(WholeNumber)
BODIES: list[JsonBody[Any]] = [
    signal_json(Limits()),
    batch_json(Limits()),
    watch_json(Limits()),
]
TOKENS = BearerTokens([("a-token-that-nobody-guesses", "*")])

# Text that is likely to come close to what is meant.
near = st.text(alphabet=string.digits + ".msµ٣-+eE_ ,;=\"'nafiW/\0\n\u2028", max_size=24)
texts = st.one_of(st.text(max_size=80), near)
headers_text = st.text(st.characters(max_codepoint=255), max_size=80)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children) | st.dictionaries(st.text(max_size=9), children),
    max_leaves=12,
)
cursors = st.one_of(
    st.none(),
    st.just("0"),
    st.from_regex(r"[0-9a-f]{12}-[0-9]{1,20}", fullmatch=True),
    texts,
    json_values,
)
waits = st.one_of(near, st.floats(), st.integers(), json_values)
watch_bodies = st.fixed_dictionaries(
    {"keys": st.one_of(st.dictionaries(st.text(max_size=9), cursors, max_size=5), json_values)},
    optional={
        "wait": waits,
        "until": st.one_of(
            st.sampled_from(["any", "all"]),
            st.fixed_dictionaries({"count": st.one_of(st.integers(-2, 7), json_values)}),
            json_values,
        ),
        "limit": st.one_of(st.integers(-1, 1002), json_values),
        "min": st.one_of(st.integers(-1, 1002), json_values),
        "other": json_values,
    },
)
queries = st.one_of(
    st.binary(max_size=80),
    st.lists(st.tuples(st.sampled_from([*sorted(QUERY), "other", ""]), texts), max_size=5).map(
        lambda pairs: "&".join(f"{name}={quote(value)}" for name, value in pairs).encode()
    ),
)
headers = st.lists(
    st.tuples(
        st.sampled_from([b"prefer", b"if-none-match", b"wait-id", b"x"]),
        st.one_of(st.binary(max_size=40), headers_text.map(lambda text: text.encode("latin-1"))),
    ),
    max_size=4,
)


def _result_or_problem(parse: Callable[..., Result], *args: Any) -> Result | None:
    try:
        return parse(*args)
    except Problem as problem:
        _check(problem)
    except PurgatoryError as exc:
        # Which the endpoint makes a problem of, as here.
        _check(problem_of_error(exc))
    return None


def _check(problem: Problem) -> None:
    assert 400 <= problem.status < 500
    assert problem.detail
    # It can be sent, whatever is quoted in it.
    document = json.loads(problem.response("/p", "/p/x").body)
    assert document["status"] == problem.status


def _raw(
    query: bytes = b"", given_headers: Any = (), tail: str = "k", body: bytes = b""
) -> RawRequest:
    raw_path = b"/p/watch/" + tail.encode("utf-8", "surrogatepass")
    return RawRequest("/p/watch/" + tail, raw_path, query, given_headers, tail, body)


@given(texts)
@example("9999999999m")
def test_a_wait_is_a_finite_number_of_seconds(text: str) -> None:
    """Never negative, never NaN, and within what ten digits can say."""
    seconds = _result_or_problem(wait_seconds, text, "wait")
    if seconds is not None:
        assert math.isfinite(seconds) and 0 <= seconds < 1e12


@given(st.integers(0, 10**6), st.sampled_from(["", "s", "ms", "m"]))
def test_a_wait_that_makes_sense_is_taken(number: int, unit: str) -> None:
    """Whole numbers with and without a unit are what they say."""
    factor = {"": 1, "s": 1, "ms": 0.001, "m": 60}[unit]
    assert wait_seconds(f"{number}{unit}", "wait") == pytest.approx(number * factor)


@given(st.lists(headers_text, max_size=3))
@example(["wait=5, wait=nan"])
@example(['wait="'])
def test_preferences(found: list[str]) -> None:
    """What cannot be read is ignored, but for a wait, which is refused."""
    preferences = _result_or_problem(parse_preferences, found)
    if preferences is not None and preferences.wait is not None:
        assert math.isfinite(preferences.wait) and preferences.wait >= 0


@given(st.none() | headers_text)
def test_etags(header: str | None) -> None:
    """A cursor, or none without the header."""
    cursor = None if header is None else _result_or_problem(parse_etag_cursor, header)
    assert cursor is None or (header is not None and cursor in header and '"' not in cursor)


@given(st.none() | headers_text)
@example('"')
@example('""')
def test_idempotency_keys(header: str | None) -> None:
    """One to 255 characters of ASCII, with quotes around them or without."""
    key = None if header is None else _result_or_problem(parse_idempotency_key, header)
    if key is not None:
        assert header is not None and header.strip('"') == key
        assert key.isascii() and key.isprintable() and 0 < len(key) < 256


@given(st.none() | headers_text | cursors.map(lambda cursor: f'"{cursor}"'), st.text(max_size=20))
def test_if_match(header: str | None, key: str) -> None:
    """The head is where it says, or a refusal; whatever the header and the key are."""
    try:
        # As `RawRequest` reads it.
        text = "" if header is None else header.encode("latin-1", "replace").decode("latin-1")
        tags = _result_or_problem(parse_entity_tags, text, "If-Match") if text else None
        KeyEndpoints(PURGATORY)._check_head(key, tags)
    except Problem as problem:
        _check(problem)
    except PurgatoryError as exc:
        # Which the endpoint makes a problem of, as here.
        _check(problem_of_error(exc))


@given(st.none() | headers_text)
@example("Bearer ")
@example("bearer token-of-nobody-in-particular")
def test_credentials(header: str | None) -> None:
    """Whoever has no token that is known gets 401, whatever they send."""
    given_headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    with pytest.raises(Problem) as caught:
        TOKENS(_raw(b"", given_headers))
    _check(caught.value)
    assert caught.value.status == 401


@given(st.text(max_size=60))
def test_tokens_in_a_file(text: str) -> None:
    """ValueError, or tokens."""
    try:
        assert len(BearerTokens.from_text(text)) > 0
    except ValueError as exc:
        assert "token" in str(exc)  # noqa: PT017 - or there is nothing to say


@given(texts)
def test_wait_ids(text: str) -> None:
    """One spelling, which is accepted again."""
    wait_id = _result_or_problem(parse_wait_id, text)
    assert wait_id is None or parse_wait_id(wait_id) == wait_id


@given(queries, st.sampled_from(sorted(QUERY)))
def test_queries(query: bytes, name: str) -> None:
    """Known names, each once; and numbers within their bounds."""
    parameters = _result_or_problem(_read_query, query)
    if parameters is not None:
        assert parameters.keys() <= QUERY
        try:
            number = NUMBER.validate_python(parameters.get(name, "1"))
        except ValidationError:
            return
        assert 1 <= number <= MAX_LIMIT


def _read_query(query: bytes) -> dict[str, str]:
    errors = ParameterErrors()
    parameters = read_query(query, QUERY, errors)
    errors.raise_if_any()
    return parameters


@given(queries, headers, st.text(max_size=300))
def test_watching_one_key(query: bytes, given_headers: Any, tail: str) -> None:
    """A request that can be parked as it is."""
    request = _result_or_problem(PARSER.parse, _raw(query, given_headers, tail))
    if request is not None:
        assert request.keys == (tail,) and len(request.positions) == 1
        terms = request.terms
        assert 0 <= terms.timeout <= terms.wait <= SETTINGS.max_wait
        assert 1 <= terms.limit <= MAX_LIMIT and 1 <= terms.min_signals <= MAX_LIMIT
        for value in terms.applied:
            value.encode("ascii")


@given(st.one_of(watch_bodies, json_values), headers)
def test_watching_several_keys(body: Any, given_headers: Any) -> None:
    """A request that can be parked as it is."""
    raw = _raw(b"", given_headers, body=json.dumps(body).encode())
    request = _result_or_problem(PARSER.parse_several, raw)
    if request is not None:
        terms = request.terms
        assert 1 <= terms.needed_keys <= len(request.keys) == len(request.positions) <= 100
        assert 0 <= terms.timeout <= terms.wait <= SETTINGS.max_wait


@given(st.binary(max_size=200))
@example(b"\xff")
@example(b'{"value":"\\ud800"}')
@example(b'{"keys":{"\\ud800":null}}')
@example(b"[" * 5000)
@example(b'[{"key":1e999}]')
def test_bodies_of_bytes(body: bytes) -> None:
    """Whatever the bytes are."""
    for json_body in BODIES:
        _result_or_problem(json_body.parse, body)


@given(json_values)
def test_bodies_of_json(value: Any) -> None:
    """Whatever the JSON is; and what is accepted is what was sent."""
    body = json.dumps({"value": value}).encode()
    parsed = _result_or_problem(signal_json(Limits()).parse, body)
    if parsed is not None:
        assert json.dumps(parsed.value) == json.dumps(value)
    batch = _result_or_problem(batch_json(Limits()).parse, json.dumps([value]).encode())
    assert batch is None or len(batch) <= MAX_BATCH


@given(st.lists(st.text(max_size=9) | st.integers(0, 99), max_size=5))
def test_pointers_lead_back(location: list[str | int]) -> None:
    """RFC 6901: unescaping gives the parts again."""
    parts = pointer(tuple(location)).split("/")[1:]
    assert [part.replace("~1", "/").replace("~0", "~") for part in parts] == list(
        map(str, location)
    )


@cases("default_wait, max_wait", [(-1.0, 5.0), (6.0, 5.0), (math.nan, 5.0), (5.0, math.nan)])
def test_settings_that_make_no_sense(default_wait: float, max_wait: float) -> None:
    """The operator is told before the first request comes."""
    with pytest.raises(ValueError, match="default"):
        WaitSettings(default_wait=default_wait, max_wait=max_wait)


def test_fewer_keys_may_be_allowed() -> None:
    """The purgatory's own limit on keys is a refusal too, not an error of the server."""
    purgatory = Purgatory(limits=Limits(max_keys_per_operation=2))
    body = json.dumps({"keys": dict.fromkeys("abc")}).encode()
    with pytest.raises(Problem, match=r"/keys: .*1 to 2"):
        WatchParser(purgatory, SETTINGS).parse_several(_raw(body=body))
