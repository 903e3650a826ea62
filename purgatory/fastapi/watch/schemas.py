"""The JSON of waits: checked on the way in, documented on the way out."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
)
from pydantic_core import PydanticCustomError

from purgatory.fastapi.http.json_bodies import (
    ENVELOPE,
    KEY_PATTERN,
    KEY_ROOM,
    Cursor,
    JsonBody,
    NextCursor,
    RequestBody,
    Timestamp,
    with_fields,
)
from purgatory.fastapi.http.parameters import ALLOWED_WAIT, is_wait
from purgatory.limits import Limits


class CountOfKeys(RequestBody):
    """k of n keys."""

    count: Annotated[StrictInt, Field(ge=1, description="k: no more than there are keys.")]


class WatchBody(RequestBody):
    """Several keys in one wait."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "keys": {"order:42:paid": "8c1f0a9be2d4-1", "order:42:sent": "0"},
                    "wait": 25,
                    "until": "any",
                }
            ]
        }
    )

    keys: Annotated[
        dict[str, Cursor | None],
        Field(
            min_length=1,
            description="Each key, and its cursor or null.",
            json_schema_extra={"propertyNames": {"maxLength": 256, "pattern": KEY_PATTERN}},
        ),
    ]
    wait: StrictFloat | StrictStr | None = Field(
        None, description="As the query parameter `wait`.", examples=[25, "500ms"]
    )
    until: Literal["any", "all"] | CountOfKeys = Field(
        "any", description="How many of the keys must fire to end the wait."
    )
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        100, description="Signals of each key in the response."
    )
    min: Annotated[StrictInt, Field(ge=1)] = Field(
        1, description="Signals that a key needs to count as fired."
    )

    @field_validator("wait")
    @classmethod
    def _check_wait(cls, wait: float | str | None) -> float | str | None:
        if wait is not None and not is_wait(wait_text(wait)):
            raise PydanticCustomError("no_wait", ALLOWED_WAIT)
        return wait


def wait_text(wait: float | str) -> str:
    """Return a wait as text, as in a query, so that both are validated in one place."""
    return wait if isinstance(wait, str) else f"{wait:f}"


@lru_cache(maxsize=64)
def watch_json(limits: Limits) -> JsonBody[WatchBody]:
    """Return the body of a wait for several keys."""
    maximum = limits.max_keys_per_operation
    count_of_keys: Any = with_fields(CountOfKeys, count=Annotated[StrictInt, Field(le=maximum)])
    model = with_fields(
        WatchBody,
        keys=Annotated[dict[str, Cursor | None], Field(max_length=maximum)],
        until=Literal["any", "all"] | count_of_keys,
        min=Annotated[StrictInt, Field(le=limits.max_signals_per_key)],
    )
    return JsonBody(model, max_bytes=maximum * KEY_ROOM + ENVELOPE)


class Signal(BaseModel):
    """One signal."""

    seq: int = Field(description="Counts up within its key; ignore those you have seen.")
    cursor: NextCursor = Field(description="The cursor just after this signal.")
    at: Timestamp = Field(description="When it was fired.")
    value: Any = Field(description="The value with which it was fired: any JSON value.")


Reason = Literal["fired", "expired", "cancelled", "drained"]
More = Annotated[
    bool,
    Field(
        description="There are more signals after `cursor`: beyond `limit`, or beyond the bytes of "
        "a response."
    ),
]


class WatchResponse(BaseModel):
    """How a wait ended: always this, whatever ended it."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    signals: list[Signal] = Field(description="Oldest first; empty if the key did not fire.")
    cursor: NextCursor = Field(description="For the next wait; it advances even if nothing fired.")
    reason: Reason = Field(description="What ended the wait.")
    more: More
    poll_after_ms: int = Field(description="Wait this long before the next request.")


class KeySignals(BaseModel):
    """The signals of one key of several."""

    signals: list[Signal] = Field(
        description="Oldest first; empty, with `more`, if the signals of other keys left no room."
    )
    cursor: NextCursor = Field(description="For the next wait.")
    more: More


class WatchManyResponse(BaseModel):
    """How a wait for several keys ended."""

    keys: dict[str, KeySignals] = Field(description="The keys that fired.")
    cursors: dict[str, str] = Field(description="For the next wait: a cursor for every key.")
    reason: Reason = Field(description="What ended the wait.")
    poll_after_ms: int = Field(description="Wait this long before the next request.")
