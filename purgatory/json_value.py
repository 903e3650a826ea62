"""Values that become JSON: those of signals, and payloads without a type; what is not JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from purgatory.errors import InvalidValueError


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


def not_json(error: Exception) -> InvalidValueError:
    """Return the error of a fired value for which `encode_json` has raised `error`."""
    return InvalidValueError(
        f"the value is not JSON ({error}): fire null, a boolean, a finite number, a string, "
        "or lists and dicts of them"
    )
