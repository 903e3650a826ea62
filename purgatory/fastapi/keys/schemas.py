"""The JSON of keys and signals: checked on the way in, documented on the way out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.schemas import (
    ENVELOPE,
    ESCAPED,
    KEY_ROOM,
    Key,
    RequestBody,
    any_json,
    with_fields,
)
from purgatory.limits import Limits
from purgatory.outcome import FireResult
from purgatory.purgatory import Purgatory

# Signals in one request.
MAX_BATCH: Final = 1000
MIN_BATCH_BODY: Final = 1024 * 1024


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


@lru_cache(maxsize=64)
def signal_json(limits: Limits) -> JsonBody[SignalBody]:
    """Return the body of a fire, which may be left out."""
    model = with_fields(SignalBody, value=any_json(limits.max_value_bytes))
    return JsonBody(
        model,
        max_bytes=_max_signal_bytes(limits),
        max_value_bytes=limits.max_value_bytes,
        default=model(),
    )


@lru_cache(maxsize=64)
def batch_json(limits: Limits) -> JsonBody[list[BatchItem]]:
    """Return the body of several fires: many small values, or one of the largest."""
    item: Any = with_fields(BatchItem, value=any_json(limits.max_value_bytes))
    return JsonBody(
        list[item],
        max_bytes=max(MIN_BATCH_BODY, _max_signal_bytes(limits) + KEY_ROOM),
        max_value_bytes=limits.max_value_bytes,
        bounds={"min_length": 1, "max_length": MAX_BATCH},
    )


def _max_signal_bytes(limits: Limits) -> int:
    return ESCAPED * limits.max_value_bytes + ENVELOPE


class FireResponse(BaseModel):
    """The signal is kept, and its waiters are woken."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cursor": "8c1f0a9be2d4-1", "seq": 1, "completed": 1}]}
    )

    cursor: str = Field(
        description="The cursor just after the signal.", examples=["8c1f0a9be2d4-1"]
    )
    seq: int = Field(description="The signal's number: counts up within its key.")
    completed: int = Field(description="Operations of this process that it completed.")
    jobs: int = Field(0, description="Delayed jobs that it decided; left out if 0.")
    jobs_pending: bool = Field(
        False,
        description="The job store is away: the delayed jobs on the key that were deferred before "
        "this fire are decided when it is back. With shared signals this survives the process, "
        "otherwise it does not. Left out if false.",
    )


class FireBatchResponse(BaseModel):
    """One entry for each signal, in the order of the request."""

    results: list[FireResponse] = Field(description="In the order of the request.")


class WaitingCount(BaseModel):
    """The number of waiters on a key."""

    here: int = Field(description="In this process.")
    everywhere: int = Field(description="In all processes.")


class KeyResponse(BaseModel):
    """The cursors and waiters of a key."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    cursor: str = Field(
        description="To continue from now, as the `cursor` of a wait.",
        examples=["8c1f0a9be2d4-1"],
    )
    earliest: str = Field(
        description="To continue from the earliest signal that is kept.",
        examples=["8c1f0a9be2d4-0"],
    )
    waiting: WaitingCount


class DropKeyResponse(BaseModel):
    """The waits on the key have ended, and its history is dropped."""

    cancelled: int = Field(description="Waits that were ended.")
    cursor: str = Field(description="From now on.", examples=["8c1f0a9be2d4-1"])


class WatchedKey(BaseModel):
    """A watched key."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    waiting: int = Field(description="The number of its waiters.")


class WatchedKeysResponse(BaseModel):
    """Watched keys."""

    keys: list[WatchedKey] = Field(description="In order.")
    more: bool = Field(description="There are more than `limit`.")


def fired_json(fired: FireResult) -> bytes:
    """Return the JSON of what a fire did."""
    return b'{"cursor":"%b","seq":%d,"completed":%d%b%b}' % (
        fired.cursor.encode(),
        fired.seq,
        fired.completed,
        b',"jobs":%d' % fired.jobs if fired.jobs else b"",
        b',"jobs_pending":true' if fired.jobs_pending else b"",
    )


def has_fired(purgatory: Purgatory, key: str) -> Problem:
    """Return the problem of a fire whose If-Match names a cursor from before the last one."""
    signals = purgatory.signals
    head = signals.cursor(signals.last(key))
    return Problem(
        "precondition-failed",
        f"key {key!r} has fired since the cursor of If-Match; its cursor is {head!r} now: "
        "read the state again, then fire with that",
        head=head,
    )
