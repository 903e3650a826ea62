"""JSON on its way in and out: how deep it may nest, and what is refused on arrival."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.client.flows import Flows
from purgatory.client.requests import job_body
from purgatory.errors import InvalidValueError
from purgatory.jobs import InvalidPayloadError
from purgatory.jobs.model.spec import encode_payload
from purgatory.json_value import decode_json, is_too_deep, stored_value
from purgatory.limits import MAX_JSON_DEPTH
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.cases import cases

texts = st.text('[]{}"\\a\x00é\n', max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=30,
)  # fmt: skip


@given(values, st.integers(0, MAX_JSON_DEPTH + 3), st.booleans(), st.integers(0, 100))
def test_depth_is_bounded_and_all_else_comes_back(
    value: Any, levels: int, is_object: bool, siblings: int
) -> None:
    """Whatever is in strings, and however much is beside it."""
    for _ in range(levels):
        value = {"[{": value} if is_object else [value]
    value = [[[]] * siblings, value]
    encoded = json.dumps(value, ensure_ascii=False).encode()
    assert is_too_deep(encoded) is (depth_of(value) > MAX_JSON_DEPTH)
    if depth_of(value) <= MAX_JSON_DEPTH:
        assert decode_json(encoded) == value
    else:
        with pytest.raises(ValueError, match="nests deeper than 64 levels"):
            decode_json(encoded)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(depth_of, inner), default=0)


def nested(levels: int, *, is_object: bool = False, value: Any = None) -> Any:
    for _ in range(levels):
        value = {"a": value} if is_object else [value]
    return value


def with_frames_left(left: int, call: Callable[[], Any]) -> Any:
    """Return what `call` returns when only `left` calls within each other are possible."""
    used, frame = 0, sys._getframe()
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back

    def down(frames: int) -> Any:
        return down(frames - 1) if frames else call()

    return down(sys.getrecursionlimit() - used - left)


SIGNALS = MemorySignals(clock=MockClock())
ACCEPTED_BY: list[Callable[[Any], Any]] = [
    SIGNALS.encode,
    lambda value: encode_payload(value, 1_000_000),
    lambda value: job_body("h", value, {"delay": 1.0}),
    lambda value: next(Flows().fire("a", value, None)),
]


@given(
    st.integers(0, 2 * MAX_JSON_DEPTH) | st.just(50_000),
    st.booleans(),
    st.integers(20, 150),
    st.sampled_from(ACCEPTED_BY),
)
def test_what_is_accepted_does_not_depend_on_the_caller(
    levels: int, is_object: bool, left: int, accept: Callable[[Any], Any]
) -> None:
    """Nor is what was accepted read differently, or not at all, by code that is deep in calls."""
    value = nested(levels, is_object=is_object)
    if levels > MAX_JSON_DEPTH:
        with pytest.raises((InvalidValueError, InvalidPayloadError), match="more than 64 lists"):
            with_frames_left(left, lambda: accept(value))
        return
    with_frames_left(left, lambda: accept(value))
    encoded = json.dumps(value)
    limit = sys.getrecursionlimit()
    assert with_frames_left(left, lambda: stored_value(encoded)) == value
    assert with_frames_left(left, lambda: decode_json(encoded.encode())) == value
    assert sys.getrecursionlimit() == limit


@cases("inner, reason", [(float("nan"), "Out of range"), (b"", "bytes")])
def test_what_else_is_wrong_with_a_value_is_said_from_anywhere(inner: Any, reason: str) -> None:
    """Also if that is found only at the second attempt, with more of the stack."""
    value = nested(60, value=inner)
    with pytest.raises(InvalidValueError, match=reason):
        with_frames_left(40, lambda: SIGNALS.encode(value))


@pytest.fixture
def limit_digits() -> Iterator[Callable[[int], None]]:
    """Set the limit of digits of this process until the end of the test."""
    digits = sys.get_int_max_str_digits()
    yield sys.set_int_max_str_digits
    sys.set_int_max_str_digits(digits)


def test_digits_that_one_process_has_accepted_another_reads(
    limit_digits: Callable[[int], None],
) -> None:
    """A record is not corrupt because this process has a lower limit than the other."""
    value = [10**4_299]
    encoded = json.dumps(value)
    limit_digits(0)
    assert encode_payload(value, 10_000) == encoded
    with pytest.raises(InvalidPayloadError, match="an integer of more than 4300 digits"):
        encode_payload([10**4_300], 10_000)
    assert encode_payload(["1" * 5_000], 10_000)
    limit_digits(640)
    assert decode_json(encoded.encode()) == stored_value(encoded) == value
    assert sys.get_int_max_str_digits() == 640
    with pytest.raises(ValueError, match="Exceeds the limit"):
        decode_json(b"1" * 5_000)
