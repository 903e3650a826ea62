"""What OpenAPI says of headers, for routes of every kind."""

from __future__ import annotations

from typing import Any

from fastapi import Header

_REQUEST_NAME_PATTERN = r"^[!#-~]+$"
_REQUEST_NAME = "b7c0e5e2-3c0f-4f5e-9d0a-6f7b0c1d2e3f"


def response_header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    """Describe a header of an answer; `kind` is a JSON type."""
    return {name: {"description": description, "schema": {"type": kind}}}


def idempotency_key(what_a_repeat_does: str) -> Any:
    """Describe Idempotency-Key, for `Annotated`."""
    return Header(
        min_length=1,
        max_length=255,
        pattern=_REQUEST_NAME_PATTERN,
        description=f"Names this request: {what_a_repeat_does}",
        examples=[_REQUEST_NAME],
    )
