"""Values that become JSON: those of signals, and payloads without a type; what is not JSON."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

from purgatory.errors import InvalidValueError
from purgatory.limits import MAX_JSON_DEPTH


def _refuse(value: Any) -> NoReturn:
    is_model = hasattr(type(value), "model_dump")
    instead = ", but what its model_dump(mode='json') returns is" if is_model else ""
    raise TypeError(f"{type(value).__name__} is not JSON{instead}")


# allow_nan=False: NaN is no JSON, and a client's parser would fail on it.
encode_json = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_refuse
).encode
# The look-up of a method that a type lacks takes a tenth of a fire.
_JSON_TYPES = frozenset({bool, dict, float, int, list, str})


def json_value(value: Any) -> Any:
    """Return a pydantic model as the JSON values that it dumps; any other value as it is.

    A model is recognized by its method, so that pydantic need not be installed.
    """
    if type(value) in _JSON_TYPES:
        return value
    dump = getattr(type(value), "model_dump", None)
    return value if dump is None else dump(value, mode="json")


TOO_DEEP: Final = (
    f"has more than {MAX_JSON_DEPTH} lists and objects within each other, the limit: make it "
    "flatter, or have its deep part as a string of JSON"
)


def is_too_deep(encoded: bytes) -> bool:
    """Return True iff JSON has more than MAX_JSON_DEPTH lists and objects within each other.

    Without recursion: decoders raise RecursionError, depending on who calls them.
    """
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_JSON_DEPTH:
        return False
    brackets = _STRING.sub(b"", encoded).translate(_TO_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_JSON_DEPTH):
        # The innermost ones.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def decode_json(encoded: bytes) -> Any:
    """Return the value of JSON from another process; raise ValueError for what ours never sends.

    That is also NaN and the like, what is not UTF-8, what `is_too_deep`, and line breaks: values
    are copied into responses as they are.
    """
    if b"\n" in encoded or b"\r" in encoded:
        raise ValueError("it has line breaks")
    if is_too_deep(encoded):
        raise ValueError(f"it nests deeper than {MAX_JSON_DEPTH} levels, or its brackets differ")
    value = _decode(encoded.decode())
    if b"\\u" in encoded:
        # Lone surrogates.
        encode_json(value).encode()
    return value


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:32]} is not JSON, or not finite")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse_number(text)


_decode = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite).decode
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def not_json(error: Exception) -> InvalidValueError:
    """Return the error of a fired value for which `encode_json` has raised `error`."""
    return InvalidValueError(
        f"the value is not JSON ({error}): fire null, a boolean, a finite number, a string, "
        "or lists and dicts of them"
    )
