"""The JSON of requests and answers: checked on the way in, documented on the way out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

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


class _Body(BaseModel):
    # hide_input: what a client sent is not repeated at length to whoever reads the answer.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class SignalBody(_Body):
    """A signal to fire."""

    value: Any = Field(None, description="Any JSON value; 64 KiB at most.")


class BatchItem(_Body):
    """One signal of a batch."""

    key: Key
    value: Any = None


class CountOfKeys(_Body):
    """k of n keys."""

    count: Annotated[StrictInt, Field(ge=1, le=100)]


class WatchBody(_Body):
    """Several keys in one wait."""

    keys: Annotated[
        dict[str, Cursor | None],
        Field(
            min_length=1,
            max_length=100,
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
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 100
    min: Annotated[StrictInt, Field(ge=1, le=1000)] = 1


class SignalAnswer(BaseModel):
    """One signal."""

    seq: int = Field(description="Counts up within its key; drop what you have seen before.")
    cursor: str = Field(description="The cursor just behind this signal.")
    at: Moment = Field(description="When it was fired.")
    value: Any


Reason = Literal["fired", "expired", "cancelled", "drained"]


class WatchAnswer(BaseModel):
    """How a wait ended: always this, whatever ended it."""

    key: str
    signals: list[SignalAnswer] = Field(description="Oldest first.")
    cursor: str = Field(description="For the next wait; it moves on although nothing fired.")
    reason: Reason
    more: bool = Field(description="There are other signals behind `cursor`.")
    poll_after_ms: int = Field(description="Wait this long before the next request.")


class KeySignals(BaseModel):
    """What one key of several has to tell."""

    signals: list[SignalAnswer]
    cursor: str
    more: bool


class WatchManyAnswer(BaseModel):
    """How a wait for several keys ended."""

    keys: dict[str, KeySignals] = Field(description="The keys that fired.")
    cursors: dict[str, str] = Field(description="For the next wait: a cursor for every key.")
    reason: Reason
    poll_after_ms: int


class FiredAnswer(BaseModel):
    """A signal was kept, and whoever waited for it was woken."""

    cursor: str
    seq: int
    completed: int = Field(description="Operations of this process that it completed.")
    jobs: int = Field(0, description="Delayed jobs that it decided; left out where there are none.")


class BatchAnswer(BaseModel):
    """One entry a signal, in the order of the request."""

    results: list[FiredAnswer]


class WaitingCount(BaseModel):
    """How many wait on a key."""

    here: int
    everywhere: int


class KeyAnswer(BaseModel):
    """What is known of a key."""

    key: str
    cursor: str = Field(description="From now on.")
    earliest: str = Field(description="From the earliest signal that is kept.")
    waiting: WaitingCount


class CancelledAnswer(BaseModel):
    """The key's waiters were ended and its history dropped."""

    cancelled: int
    cursor: str


class WatchedKey(BaseModel):
    """A key that is watched."""

    key: str
    waiting: int


class KeysAnswer(BaseModel):
    """Keys that are watched."""

    keys: list[WatchedKey]
    more: bool


class ProblemAnswer(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The address of the problem's description.")
    title: str
    status: int
    detail: str = Field(description="The value, the limit and the way out.")
    instance: str
