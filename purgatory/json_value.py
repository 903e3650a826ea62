"""Values that become JSON: those of signals, and payloads; what is not JSON, or nests too deep."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import (  # type: ignore[attr-defined] # not in typeshed
    c_make_encoder,
    encode_basestring,
)
from math import isfinite
from typing import Any, Final, NoReturn

from purgatory.errors import InvalidValueError, PurgatoryError
from purgatory.limits import MAX_JSON_DEPTH


def _refuse(value: Any) -> NoReturn:
    is_model = hasattr(type(value), "model_dump")
    instead = ", but what its model_dump(mode='json') returns is" if is_model else ""
    raise TypeError(f"{type(value).__name__} is not JSON{instead}")


# As JSONEncoder(ensure_ascii=False, allow_nan=False) makes one for each value, which takes longer
# than a small value. NaN is no JSON, and a client's parser would fail on it. What contains itself
# is found to be too deep.
_encode_parts: Callable[[Any, int], tuple[str, ...]] = c_make_encoder(
    None, _refuse, encode_basestring, None, ":", ",", False, False, False
)


def _encode(value: Any) -> str:
    return "".join(_encode_parts(value, 0))


# The look-up of a method that a type lacks takes a tenth of a fire.
_JSON_TYPES = frozenset({bool, dict, float, int, list, str})


@dataclass(frozen=True, slots=True)
class JsonKind:
    """What a value is for, as errors name it."""

    noun: str
    verb: str
    error: Callable[[str], PurgatoryError]


VALUE: Final = JsonKind("value", "fire", InvalidValueError)


def json_value(value: Any, kind: JsonKind = VALUE) -> Any:
    """Return a pydantic model as the JSON values that it dumps; any other value as it is.

    A model is recognized by its method, so that pydantic need not be installed. Raises the error of
    `kind` for a model that cannot be dumped.
    """
    if type(value) in _JSON_TYPES:
        return value
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        return value
    try:
        return dump(value, mode="json")
    except ValueError as exc:
        raise kind.error(
            f"the {kind.noun} is {type(value).__name__}, whose model_dump(mode='json') fails "
            f"({exc}): {kind.verb} JSON, with at most {MAX_JSON_DEPTH} lists and objects within "
            "each other"
        ) from exc


def encode_json(value: Any, kind: JsonKind, max_bytes: float) -> bytes:
    """Return a value as compact JSON; raise the error of `kind` if it is not JSON or too large."""
    try:
        encoded = _encode(value).encode()
    except RecursionError as exc:
        raise kind.error(f"the {kind.noun} {TOO_DEEP}") from exc
    except (TypeError, ValueError) as exc:
        raise kind.error(
            f"the {kind.noun} is not JSON ({exc}): {kind.verb} null, a boolean, a finite number, a "
            "string, or lists and dicts of them"
        ) from exc
    if len(encoded) > _SHALLOW_BYTES and is_too_deep(encoded):
        raise kind.error(f"the {kind.noun} {TOO_DEEP}")
    if len(encoded) > max_bytes:
        raise kind.error(
            f"the {kind.noun} takes {len(encoded)} bytes as JSON, more than the limit of "
            f"{max_bytes}: store it elsewhere and {kind.verb} its address"
        )
    return encoded


TOO_DEEP: Final = (
    f"has more than {MAX_JSON_DEPTH} lists and objects within each other, the limit: make it "
    "flatter, or have its deep part as a string of JSON"
)
# JSON of so many bytes cannot be too deep.
_SHALLOW_BYTES: Final = 2 * MAX_JSON_DEPTH
# Around values, in the bodies of requests and responses: fewer.
MAX_DOCUMENT_DEPTH: Final = MAX_JSON_DEPTH + 8


def is_too_deep(encoded: bytes, levels: int = MAX_JSON_DEPTH) -> bool:
    """Return True iff JSON has more than `levels` lists and objects within each other.

    Without recursion: decoders raise RecursionError, depending on who calls them.
    """
    if encoded.count(b"[") + encoded.count(b"{") <= levels:
        return False
    brackets = _STRING.sub(b"", encoded).translate(_TO_BRACKETS, _NO_BRACKETS)
    for _ in range(levels):
        # The innermost ones.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def decode_document(encoded: bytes) -> Any:
    """Return the value of a JSON document, which may contain values of ours; raise ValueError.

    Also for one that nests deeper than ours.
    """
    if is_too_deep(encoded, MAX_DOCUMENT_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DOCUMENT_DEPTH} levels")
    return stored_value(encoded.decode())


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
        _encode(value).encode()
    return value


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:32]} is not JSON, or not finite")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse_number(text)


_decode = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite).decode
stored_value: Final[Callable[[str], Any]] = json.JSONDecoder().decode
"""Return the value of JSON that was checked before."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
