"""How large a body may be, and what may be in it, as the limits of one purgatory have it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, StrictInt, create_model

from purgatory.fastapi.jobs.schemas import JobBody
from purgatory.fastapi.watch.schemas import (
    BatchItem,
    CountOfKeys,
    Cursor,
    Key,
    SignalBody,
    WatchBody,
)
from purgatory.jobs import JobLimits
from purgatory.limits import Limits
from purgatory.operations.watch_key import MAX_KEY_LENGTH

Model = TypeVar("Model", bound=BaseModel)

# JSON that is written for ASCII only, as Python writes it, takes this much more room than in UTF-8.
ESCAPED: Final = 3
# A key of characters that take two escapes each; its cursor, and what stands around them.
KEY_ROOM: Final = 12 * MAX_KEY_LENGTH + 128
# What stands around a value in its body.
ENVELOPE: Final = 1024
# All of a job but its payload and its keys.
JOB_ENVELOPE: Final = 16 * 1024
MIN_BATCH_BODY: Final = 1024 * 1024
MIN_JOB_BATCH_BODY: Final = 16 * 1024 * 1024


def max_signal_body(limits: Limits) -> int:
    """Return how many bytes a body with one value has at most."""
    return ESCAPED * limits.max_value_bytes + ENVELOPE


def max_batch_body(limits: Limits) -> int:
    """Return the same of several values: many small ones have room, or one of the largest."""
    return max(MIN_BATCH_BODY, max_signal_body(limits) + KEY_ROOM)


def max_watch_body(limits: Limits) -> int:
    """Return the same of several keys to wait for."""
    return limits.max_keys_per_operation * KEY_ROOM + ENVELOPE


def max_job_body(limits: JobLimits) -> int:
    """Return the same of one job."""
    return ESCAPED * limits.max_payload_bytes + limits.max_keys * KEY_ROOM + JOB_ENVELOPE


def max_job_batch_body(limits: JobLimits) -> int:
    """Return the same of many jobs: many small ones have room, or one of the largest."""
    return max(MIN_JOB_BATCH_BODY, max_job_body(limits))


@lru_cache(maxsize=64)
def watch_body(limits: Limits) -> type[WatchBody]:
    """Return WatchBody with the bounds on its keys, and on the signals to wait for."""
    maximum = limits.max_keys_per_operation
    keys, until, least = (WatchBody.model_fields[name] for name in ("keys", "until", "min"))
    count = CountOfKeys.model_fields["count"]
    bounded_keys = Field(
        min_length=1,
        max_length=maximum,
        description=keys.description,
        json_schema_extra=keys.json_schema_extra,
    )
    bounded_count = Field(ge=1, le=maximum, description=count.description)
    count_of_keys: Any = _with_fields(CountOfKeys, count=(StrictInt, bounded_count))
    return _with_fields(
        WatchBody,
        keys=(dict[str, Cursor | None], bounded_keys),
        until=(
            Literal["any", "all"] | count_of_keys,
            Field(until.default, description=until.description),
        ),
        min=(
            StrictInt,
            Field(
                least.default, ge=1, le=limits.max_signals_per_key, description=least.description
            ),
        ),
    )


@lru_cache(maxsize=64)
def job_body(limits: JobLimits) -> type[JobBody]:
    """Return JobBody with the bounds on its payload, keys and attempts."""
    schemas = JobBody.model_fields
    return _with_fields(
        JobBody,
        payload=_any_json(limits.max_payload_bytes),
        keys=(
            list[Key],
            Field(
                default_factory=list,
                max_length=limits.max_keys,
                description=schemas["keys"].description,
            ),
        ),
        max_attempts=(
            StrictInt,
            Field(
                min(schemas["max_attempts"].default, limits.max_attempts),
                ge=1,
                le=limits.max_attempts,
                description=schemas["max_attempts"].description,
            ),
        ),
    )


@lru_cache(maxsize=64)
def signal_body(limits: Limits) -> type[SignalBody]:
    """Return SignalBody that says how large a value may be: for the documentation."""
    return _with_fields(SignalBody, value=_any_json(limits.max_value_bytes))


@lru_cache(maxsize=64)
def batch_item(limits: Limits) -> type[BatchItem]:
    """Return BatchItem that says how large a value may be: for the documentation."""
    return _with_fields(BatchItem, value=_any_json(limits.max_value_bytes))


def _any_json(max_bytes: int) -> tuple[Any, Any]:
    description = f"Any JSON value; {max_bytes} bytes of compact JSON in UTF-8 at most."
    return Any, Field(None, description=description)


def _with_fields(model: type[Model], **fields: Any) -> type[Model]:
    # Under the same name: what it is called in OpenAPI does not depend on anyone's limits.
    made: type[Model] = create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
    )
    return made
