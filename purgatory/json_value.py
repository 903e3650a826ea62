"""Values that become JSON: those of signals, and payloads without a type."""

from __future__ import annotations

from typing import Any

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
