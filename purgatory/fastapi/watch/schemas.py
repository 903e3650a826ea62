"""The JSON of requests and answers: checked on the way in, documented on the way out."""

from __future__ import annotations

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

from purgatory.fastapi.http.preferences import ALLOWED_WAIT, is_wait

# For the documentation; what is refused, and why, is said by `check_key`.
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
        description="Opaque, from an earlier answer; 0: the earliest kept.",
        examples=["8c1f0a9be2d4-1", "0"],
    ),
]
Moment = Annotated[
    str,
    Field(
        description="RFC 3339, UTC, to the millisecond.",
        json_schema_extra={"format": "date-time"},
        examples=["2026-11-21T15:04:05.678Z"],
    ),
]
MAX_BATCH = 1000


class RequestBody(BaseModel):
    """What every body has in common: no field that is not known, and no number that is none."""

    # hide_input: what a client sent is not repeated at length to whoever reads the answer.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class SignalBody(RequestBody):
    """A signal to fire."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": {"by": "card"}}]})

    value: Any = Field(None, description="Any JSON value.")


class BatchItem(RequestBody):
    """One signal of a batch."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"key": "order:42:paid", "value": {"by": "card"}}]}
    )

    key: Key
    value: Any = Field(None, description="Any JSON value.")


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
        "any", description="How many of the keys have to fire before the answer comes."
    )
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        100, description="Signals of each key in the answer."
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
    """Return a wait as a query would have it, so that both are checked in one place."""
    return wait if isinstance(wait, str) else f"{wait:f}"


class SignalAnswer(BaseModel):
    """One signal."""

    seq: int = Field(description="Counts up within its key; drop what you have seen before.")
    cursor: str = Field(
        description="The cursor just behind this signal.", examples=["8c1f0a9be2d4-1"]
    )
    at: Moment = Field(description="When it was fired.")
    value: Any = Field(description="What it was fired with: any JSON value.")


_SIGNAL_EXAMPLE: dict[str, Any] = {
    "seq": 1,
    "cursor": "8c1f0a9be2d4-1",
    "at": "2026-11-21T15:04:05.678Z",
    "value": {"by": "card"},
}

Reason = Literal["fired", "expired", "cancelled", "drained"]


class WatchAnswer(BaseModel):
    """How a wait ended: always this, whatever ended it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key": "order:42:paid",
                    "signals": [_SIGNAL_EXAMPLE],
                    "cursor": "8c1f0a9be2d4-1",
                    "reason": "fired",
                    "more": False,
                    "poll_after_ms": 0,
                }
            ]
        }
    )

    key: str = Field(examples=["order:42:paid"], description="The key.")
    signals: list[SignalAnswer] = Field(description="Oldest first; none where it did not fire.")
    cursor: str = Field(
        description="For the next wait; it moves on although nothing fired.",
        examples=["8c1f0a9be2d4-1"],
    )
    reason: Reason = Field(description="What ended the wait.")
    more: bool = Field(description="There are other signals behind `cursor`.")
    poll_after_ms: int = Field(description="Wait this long before the next request.")


class KeySignals(BaseModel):
    """What one key of several has to tell."""

    signals: list[SignalAnswer] = Field(description="Oldest first.")
    cursor: str = Field(description="For the next wait.", examples=["8c1f0a9be2d4-1"])
    more: bool = Field(description="There are other signals behind `cursor`.")


class WatchManyAnswer(BaseModel):
    """How a wait for several keys ended."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "keys": {
                        "order:42:paid": {
                            "signals": [_SIGNAL_EXAMPLE],
                            "cursor": "8c1f0a9be2d4-1",
                            "more": False,
                        }
                    },
                    "cursors": {
                        "order:42:paid": "8c1f0a9be2d4-1",
                        "order:42:sent": "8c1f0a9be2d4-1",
                    },
                    "reason": "fired",
                    "poll_after_ms": 0,
                }
            ]
        }
    )

    keys: dict[str, KeySignals] = Field(description="The keys that fired.")
    cursors: dict[str, str] = Field(description="For the next wait: a cursor for every key.")
    reason: Reason = Field(description="What ended the wait.")
    poll_after_ms: int = Field(description="Wait this long before the next request.")


class FiredAnswer(BaseModel):
    """A signal was kept, and whoever waited for it was woken."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cursor": "8c1f0a9be2d4-1", "seq": 1, "completed": 1}]}
    )

    cursor: str = Field(
        description="The cursor just behind the signal.", examples=["8c1f0a9be2d4-1"]
    )
    seq: int = Field(description="The signal's number: counts up within its key.")
    completed: int = Field(description="Operations of this process that it completed.")
    jobs: int = Field(0, description="Delayed jobs that it decided; left out where there are none.")


class BatchAnswer(BaseModel):
    """One entry a signal, in the order of the request."""

    results: list[FiredAnswer] = Field(description="In the order of the request.")


class WaitingCount(BaseModel):
    """How many wait on a key."""

    here: int = Field(description="In this process.")
    everywhere: int = Field(description="In all processes.")


class KeyAnswer(BaseModel):
    """What is known of a key."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    cursor: str = Field(
        description="To go on with from now on, as the `cursor` of a wait.",
        examples=["8c1f0a9be2d4-1"],
    )
    earliest: str = Field(
        description="To go on with from the earliest signal that is kept.",
        examples=["8c1f0a9be2d4-0"],
    )
    waiting: WaitingCount


class CancelledAnswer(BaseModel):
    """The key's waiters were ended and its history dropped."""

    cancelled: int = Field(description="Waits that were ended.")
    cursor: str = Field(description="From now on.", examples=["8c1f0a9be2d4-1"])


class WatchedKey(BaseModel):
    """A key that is watched."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    waiting: int = Field(description="How many wait on it.")


class KeysAnswer(BaseModel):
    """Keys that are watched."""

    keys: list[WatchedKey] = Field(description="In order.")
    more: bool = Field(description="There are more than `limit`.")


class ProblemAnswer(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The address of the problem's description.")
    title: str = Field(description="What kind of problem it is; the same for all of a `type`.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The value, the limit and the way out.")
    instance: str = Field(description="What was asked for.")
