"""Values that become JSON: those of signals, and payloads without a type."""

from __future__ import annotations

from typing import Any


def json_value(value: Any) -> Any:
    """Return a pydantic model as the JSON values that it dumps; any other value as it is.

    A model is recognized by its method, so that pydantic need not be installed.
    """
    dump = getattr(type(value), "model_dump", None)
    return value if dump is None else dump(value, mode="json")
