"""The JSON of delayed jobs: checked on the way in, documented and made on the way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
)
from pydantic_core import PydanticCustomError

from purgatory.fastapi.http.json_bodies import (
    ENVELOPE,
    ESCAPED,
    KEY_PATTERN,
    KEY_ROOM,
    Cursor,
    JsonBody,
    Key,
    RequestBody,
    Timestamp,
    any_json,
    with_fields,
)
from purgatory.fastapi.http.requests import Access, Action, Permit
from purgatory.fastapi.http.responses import RawResponse, header_lines
from purgatory.fastapi.watch.request_parser import CountOfKeys
from purgatory.jobs import Job, JobLimits
from purgatory.jobs.callbacks import CALLBACK
from purgatory.jobs.model.deadline import rfc3339, utc
from purgatory.jobs.model.job import DEFAULT_ATTEMPTS, shown_dedupe_key

MIN_JOB_BATCH_BODY: Final = 16 * 1024 * 1024
# Bytes of a job without its payload and keys.
JOB_ENVELOPE: Final = 16 * 1024

Delay = Annotated[
    StrictFloat | None,
    Field(ge=0, description="Seconds from now, by the store's clock. This or `at`."),
]


def _refuse_number(at: Any) -> Any:
    """Refuse numbers and their digits, which pydantic takes for a Unix time."""
    if not isinstance(at, str) or ":" not in at:
        raise PydanticCustomError("datetime_parsing", "Input should be a date and a time")
    return at


At = Annotated[
    Annotated[AwareDatetime, BeforeValidator(_refuse_number)] | None,
    Field(
        description="A time, RFC 3339 with a zone. This or `delay`.",
        examples=["2026-11-21T15:04:05Z"],
    ),
]

_CursorOfKeys = Annotated[
    dict[str, Cursor],
    Field(json_schema_extra={"propertyNames": {"maxLength": 256, "pattern": KEY_PATTERN}}),
]


class CallbackBody(RequestBody):
    """An HTTP request to make."""

    url: Annotated[
        StrictStr,
        Field(
            min_length=1,
            max_length=2048,
            description="http or https, on the public internet unless the operators allow more.",
            examples=["https://shop.example/hook"],
        ),
    ]
    method: Literal["DELETE", "GET", "PATCH", "POST", "PUT"] = Field(
        "POST", description="A GET has no body."
    )
    headers: Annotated[dict[StrictStr, StrictStr], Field(max_length=20)] = Field(
        default_factory=dict, description="Sent with the request; never shown again."
    )


class JobBody(RequestBody):
    """A job to be done later. It has a `handler` or a `callback`, and a `delay` or an `at`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "callback": {"url": "https://shop.example/hook"},
                    "payload": {"order": 42},
                    "delay": 900,
                    "keys": ["order:42:paid"],
                    "on_fire": "cancel",
                }
            ]
        }
    )

    handler: Key | None = Field(None, description="The name of a handler. This or `callback`.")
    callback: CallbackBody | None = Field(None, description="This or `handler`.")
    payload: Any = None
    delay: Delay = None
    at: At = None
    keys: list[Key] = Field(
        default_factory=list, description="Watch keys that decide the job when they fire."
    )
    since: Cursor | _CursorOfKeys | None = Field(
        None,
        description="A cursor, for all keys or for some: what fired since then counts. Without, "
        "what fires once the job is stored.",
    )
    until: Literal["any", "all"] | CountOfKeys = Field(
        "any", description="How many of the keys must fire to decide the job."
    )
    on_fire: Literal["run", "cancel"] = Field(
        "run", description="What happens to the job then; `cancel` needs `keys`."
    )
    dedupe_key: Key | None = Field(None, description="One job waits with it at a time.")
    on_conflict: Literal["error", "replace", "keep"] = Field(
        "error",
        description="What to do while another job waits with that dedupe key; `replace` and "
        "`keep` need one.",
    )
    concurrency_key: Key | None = Field(
        None,
        description="As many jobs of the handler as it allows run with it at once, in all "
        "processes; others that are due wait. Without such a bound it has no effect.",
    )
    max_attempts: Annotated[StrictInt, Field(ge=1)] = Field(
        DEFAULT_ATTEMPTS,
        description="How often it is started at most, if it fails. That of its handler, if the "
        "handler has one, takes the place of the default.",
    )
    misfire: Literal["run", "skip", "spread"] = Field(
        "run", description="What to do if no process ran at the deadline."
    )
    ceiling: Annotated[StrictFloat | None, Field(ge=0)] = Field(
        None,
        description="Seconds from now at which a later deadline is cut short, moved or not.",
    )

    def accesses(self) -> Iterator[Access]:
        """Yield the access that it needs besides DEFER: to its keys, and to its dedupe key."""
        for key in self.keys:
            yield Access(Action.WAIT, key)
        if self.dedupe_key is not None:
            yield Access(Action.DEFER, dedupe_key=self.dedupe_key)


class RescheduleBody(RequestBody):
    """A new deadline: one of the two."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"delay": 900}]})

    delay: Delay = None
    at: At = None


@lru_cache(maxsize=64)
def job_json(limits: JobLimits) -> JsonBody[JobBody]:
    """Return the body of one job, with the bounds on its payload, keys and attempts."""
    model = with_fields(
        JobBody,
        payload=any_json(limits.max_payload_bytes),
        since=Cursor | Annotated[_CursorOfKeys, Field(max_length=limits.max_keys)] | None,
        keys=Annotated[list[Key], Field(max_length=limits.max_keys)],
        max_attempts=(
            StrictInt,
            Field(
                min(DEFAULT_ATTEMPTS, limits.max_attempts),
                ge=1,
                le=limits.max_attempts,
                description=JobBody.model_fields["max_attempts"].description,
            ),
        ),
    )
    return JsonBody(model, max_bytes=_max_job_bytes(limits))


RESCHEDULE_JSON: Final = JsonBody[RescheduleBody](RescheduleBody, max_bytes=ENVELOPE)
"""The body of another deadline."""


def max_batch_bytes(limits: JobLimits) -> int:
    """Return the maximum size of a batch: many small jobs, or one of the largest."""
    return max(MIN_JOB_BATCH_BODY, _max_job_bytes(limits))


def _max_job_bytes(limits: JobLimits) -> int:
    # The longest keys, or shorter ones and again with their cursors.
    return ESCAPED * limits.max_payload_bytes + limits.max_keys * KEY_ROOM + JOB_ENVELOPE


class JobCallback(BaseModel):
    """The HTTP request of a job."""

    url: str = Field(description="Where it goes.", examples=["https://shop.example/hook"])
    method: str = Field(description="The method of the request.", examples=["POST"])
    headers: list[str] = Field(description="The names of its headers; values are not shown.")


State = Literal["waiting", "running", "done", "failed", "cancelled"]


class ListedJob(BaseModel):
    """A job, without its payload and values, which may be large."""

    id: str = Field(
        description="Opaque; sorts by the time of adding.",
        examples=["019aa6d0f48b3f6c2e9d1a7b4c5d6e7f"],
    )
    handler: str = Field(
        description="The name of its handler; `purgatory.callback` for a callback.",
        examples=["cancel-order", CALLBACK],
    )
    state: State = Field(description="The last three are final.")
    outcome: Literal["fired", "expired", "cancelled", "missed"] | None = Field(
        description="What decided it: recorded once, and never changed."
    )
    by_hand: bool = Field(
        description="It was run by hand before its deadline: `POST .../run`. Its outcome is then "
        "`expired`. False again once another attempt is due after the deadline."
    )
    version: int = Field(description="Changes with every change; the ETag.")
    deadline: Timestamp = Field(description="When it runs unless a key fires first.")
    due: Timestamp = Field(
        description="When it runs next, or ran last: before the deadline if a key fired or it was "
        "run by hand, after it if it was spread or is retried."
    )
    created: Timestamp = Field(description="When it was added.")
    finished: Timestamp | None = Field(description="When it was done, failed or cancelled.")
    ceiling: Timestamp | None = Field(description="The deadline is never moved beyond this.")
    keys: list[str] = Field(description="The watch keys that decide it when they fire.")
    until: Literal["any", "all"] | CountOfKeys = Field(
        description="How many of the keys must fire to decide it."
    )
    on_fire: Literal["run", "cancel"] = Field(description="What happens to the job then.")
    dedupe_key: str | None = Field(description="One job waits with it at a time.")
    concurrency_key: str | None = Field(
        description="As many jobs of the handler as it allows run with it at once."
    )
    blocked_by: Literal["max_running", "max_running_per_key", "paused"] | None = Field(
        None,
        description="The bound of its handler for which it waits: it is due, and as many jobs run "
        "as that allows, in all or with its concurrency key. `paused` if it was due, or nearly, "
        "and waits until its handler is resumed. Null if nothing but time and keys is in its way.",
    )
    misfire: Literal["run", "skip", "spread"] = Field(
        description="What happens to it if no process ran at its deadline."
    )
    round: int = Field(description="How often it has waited again, as its handler asked.")
    attempt: int = Field(description="How often it was started, in this round.")
    max_attempts: int = Field(description="How often it is started before a failure ends it.")
    fired_key: str | None = Field(description="The key that decided it; null if none did.")
    fired_keys: list[str] = Field(
        description="The keys that fired and count, in that order; one that decided it is the last."
    )
    lateness_ms: int | None = Field(
        description="Milliseconds from its due time to its first start."
    )
    error: str | None = Field(description="The error of the last failed attempt.")


class JobResponse(ListedJob):
    """A job."""

    callback: JobCallback | None = Field(
        description="The request that it makes; null for a job with a handler of its own."
    )
    payload: Any = Field(description="The payload of the job: any JSON value.")
    fired_value: Any = Field(description="The value with which `fired_key` was fired.")


class RunJobResponse(JobResponse):
    """A job that was run by hand."""

    paused: bool = Field(
        description="Its handler is paused: the job is due, and starts once that is resumed."
    )


class JobsResponse(BaseModel):
    """A page of jobs, about the newest first."""

    jobs: list[ListedJob] = Field(description="About the newest first.")
    next: str | None = Field(
        description="The address of the next page; null at the end. A page before it may be short."
    )


class RetriedResponse(BaseModel):
    """A batch of failed jobs that run again."""

    retried: int = Field(description="How many of the batch run again.", examples=[100])
    next: str | None = Field(
        description="The address of the next batch: POST there. Null after the last one.",
        examples=[
            "/purgatory/jobs:retry?all=true&limit=100&after=019aa6d0f48b3f6c2e9d1a7b4c5d6e7f"
        ],
    )


class PausedResponse(BaseModel):
    """The handlers that are paused, in all processes."""

    handlers: list[str] = Field(description="Paused by their names.", examples=[["cancel-order"]])
    all: bool = Field(description="All handlers are paused.")
    jobs: int = Field(description="Jobs that are due and wait for that to end.", examples=[12])
    unknown: list[str] = Field(
        description="Those of `handlers` that this process neither has nor expects of another "
        "service (`handled_elsewhere`): misspelt, unless another service has them."
    )


class BatchLine(BaseModel):
    """The result of one line."""

    line: int = Field(description="Its number, from 1.")
    status: int = Field(description="201, 200, or the status of its problem.")
    id: str | None = Field(None, description="The id of the job, if it was added.")
    problem: dict[str, Any] | None = Field(
        None, description="Why it was refused, as problem details."
    )
    same_as: int | None = Field(
        None, description="The number of another line that has the same `problem`."
    )
    job: str | None = Field(
        None, description="With `same_as`: the job that has the dedupe key of this line."
    )


def entity_tag(job: Job) -> str:
    """Return the ETag of a job: it changes with its version."""
    return f'"{job.version}"'


def job_response(
    job: Job,
    permit: Permit,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    is_paused: bool | None = None,
) -> RawResponse:
    """Return the response with a job, its ETag and `headers`.

    It says whether the handler is paused, unless `is_paused` is None. The fired value is
    for those who may wait for its key.
    """
    more = header_lines({"ETag": entity_tag(job), **(headers or {})})
    document = JobResponse(**_listed(job), **_large(job))
    if is_paused is not None:
        document = RunJobResponse(**document.model_dump(), paused=is_paused)
    if job.fired_key is not None and not permit.allows(Access(Action.WAIT, job.fired_key)):
        document.fired_value = None
    return RawResponse.from_json(status, document.model_dump_json().encode(), more)


def listed_job(job: Job) -> ListedJob:
    """Return a job as lists show it: without its payload."""
    return ListedJob(**_listed(job))


_AS_THEY_ARE: Final = (
    *("id", "handler", "version", "blocked_by", "round", "attempt", "max_attempts"),
    *("fired_key", "lateness_ms", "error"),
)


def _listed(job: Job) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in _AS_THEY_ARE},
        "state": str(job.state),
        "outcome": None if job.outcome is None else str(job.outcome),
        "by_hand": job.is_by_hand,
        "deadline": _timestamp(job.deadline_ms),
        "due": _timestamp(job.due_ms),
        "created": _timestamp(job.created_ms),
        "finished": _timestamp(job.finished_ms),
        "ceiling": _timestamp(job.ceiling_ms),
        "keys": list(job.keys),
        "until": _until(job),
        "on_fire": str(job.on_fire),
        "dedupe_key": _shown(job.dedupe_key),
        "concurrency_key": _shown(job.concurrency_key),
        "misfire": str(job.misfire),
        "fired_keys": list(job.fired_keys),
    }


def _large(job: Job) -> dict[str, Any]:
    payload, callback = job.payload, None
    if job.handler == CALLBACK and isinstance(payload, dict):
        # The values of headers may be secrets.
        callback = {
            "url": payload.get("url", ""),
            "method": payload.get("method", "POST"),
            "headers": list(payload.get("headers", ())),
        }
        payload = payload.get("payload")
    return {"payload": payload, "callback": callback, "fired_value": job.fired_value}


def _shown(key: str | None) -> str | None:
    return None if key is None else shown_dedupe_key(key)


def _until(job: Job) -> str | CountOfKeys:
    if job.needed == 1:
        return "any"
    return "all" if job.needed == len(job.keys) else CountOfKeys(count=job.needed)


def _timestamp(wall_ms: int | None) -> str | None:
    return None if wall_ms is None else rfc3339(utc(wall_ms))
