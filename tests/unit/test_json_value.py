"""JSON on its way in and out: how deep it may nest, and what is refused on arrival."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.errors import InvalidValueError
from purgatory.jobs import InvalidPayloadError
from purgatory.jobs.model import encode_payload
from purgatory.json_value import decode_json, encode_json, is_too_deep
from purgatory.limits import MAX_JSON_DEPTH
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock

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
    encoded = encode_json(value).encode()
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


@pytest.mark.parametrize("kind", ["list", "object"])
def test_what_is_given_here_is_bounded_alike(kind: str) -> None:
    """A signal's value and a job's payload: so every process that reads it can."""
    value: Any = None
    for _ in range(MAX_JSON_DEPTH):
        value = [value] if kind == "list" else {"a": value}
    signals = MemorySignals(clock=MockClock())
    assert signals.append("a", value).value == value
    assert encode_payload(value, 1_000)
    with pytest.raises(InvalidValueError, match="more than 64 lists and objects within"):
        signals.append("a", [value])
    with pytest.raises(InvalidPayloadError, match="more than 64 lists and objects within"):
        encode_payload([value], 1_000)
