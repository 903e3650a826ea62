"""What the schemas of all endpoints share: field types, the base of bodies, bounds from limits."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictStr, create_model

from purgatory.operations.watch_key import MAX_KEY_LENGTH

Model = TypeVar("Model", bound=BaseModel)

# JSON that is written for ASCII only, as Python writes it, takes this much more room than in UTF-8.
ESCAPED: Final = 3
# Bytes: a key whose characters take two escapes each, its cursor, and the punctuation around them.
KEY_ROOM: Final = 12 * MAX_KEY_LENGTH + 128
# Bytes around a value in its body.
ENVELOPE: Final = 1024

# For OpenAPI; `check_key` validates keys, with its own messages.
KEY_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        description="1-256 characters, none of them control.",
        json_schema_extra={"pattern": KEY_PATTERN},
    ),
]
Cursor = Annotated[
    StrictStr,
    Field(
        description="Opaque, from an earlier response; 0: the earliest kept.",
        examples=["8c1f0a9be2d4-1", "0"],
    ),
]
Timestamp = Annotated[
    str,
    Field(
        description="RFC 3339, UTC, to the millisecond.",
        json_schema_extra={"format": "date-time"},
        examples=["2026-11-21T15:04:05.678Z"],
    ),
]


class RequestBody(BaseModel):
    """The base of bodies: no unknown field, no NaN or Infinity."""

    # hide_input: a response does not repeat at length what the client sent.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class ProblemDetails(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The address of the problem's description.")
    title: str = Field(description="What kind of problem it is; the same for all of a `type`.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The value, the limit and the way out.")
    instance: str = Field(description="The path of the request.")


def any_json(max_bytes: int) -> tuple[Any, Any]:
    """Return the type and the field of a JSON value, whose bound OpenAPI describes."""
    description = f"Any JSON value; {max_bytes} bytes of compact JSON in UTF-8 at most."
    return Any, Field(None, description=description)


def with_fields(model: type[Model], **fields: Any) -> type[Model]:
    """Return `model` with some of its fields replaced, each by a type and a `Field`."""
    # Under the same name: what it is called in OpenAPI does not depend on anyone's limits.
    made: type[Model] = create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
    )
    return made
