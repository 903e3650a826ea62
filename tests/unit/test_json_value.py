"""JSON on its way in and out: how deep it may nest, and what is refused on arrival."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    st.sampled_from(ACCEPTED_BY),
)
def test_what_is_accepted_is_read(
    levels: int, is_object: bool, accept: Callable[[Any], Any]
) -> None:
    """Whoever takes it; what nests deeper than any encoder reaches is said to be too deep, too."""
    value = nested(levels, is_object=is_object)
    if levels > MAX_JSON_DEPTH:
        with pytest.raises((InvalidValueError, InvalidPayloadError), match="more than 64 lists"):
            accept(value)
        return
    accept(value)
    encoded = json.dumps(value)
    assert stored_value(encoded) == decode_json(encoded.encode()) == value


@cases("inner, reason", [(float("nan"), "Out of range"), (b"", "bytes")])
def test_what_else_is_wrong_with_a_value_is_said(inner: Any, reason: str) -> None:
    """However deep it is."""
    with pytest.raises(InvalidValueError, match=reason):
        SIGNALS.encode(nested(60, value=inner))
