"""The parameters of jobs: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

from functools import partial
from typing import Final

from purgatory.fastapi.http.idempotency import idempotency_key
from purgatory.fastapi.http.parameters import (
    Parameter,
    Parameters,
    ParameterValues,
    key_filter,
    whole_number,
)
from purgatory.fastapi.http.problems import bad_parameter
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.request_headers import (
    ENTITY_TAGS_PATTERN,
    EntityTags,
    Preferences,
    parse_entity_tags,
    parse_prefer,
)
from purgatory.fastapi.jobs.schemas import State
from purgatory.jobs import JobState


def _parse_state(text: str) -> JobState:
    states = [str(known) for known in JobState]
    if text not in states:
        raise bad_parameter("state", f"state is {text[:64]!r}", ", ".join(states))
    return JobState(text)


def _parse_flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise bad_parameter(name, f"{name} is {text[:64]!r}", "true, false")
    return text == "true"


def _flag(name: str, description: str) -> Parameter[bool]:
    return Parameter(
        name=name,
        location="query",
        description=description,
        parse=partial(_parse_flag, name=name),
        default=False,
        documented_default=False,
        type=bool,
    )


def _entity_tags(name: str, description: str) -> Parameter[EntityTags | None]:
    return Parameter(
        name=name,
        location="header",
        description=description,
        parse=partial(parse_entity_tags, name=name),
        default=None,
        schema={"pattern": ENTITY_TAGS_PATTERN},
        is_list=True,
    )


JOB_ID: Final[Parameter[str]] = Parameter(
    name="id",
    location="path",
    description="A job's id.",
    # Any text may be an id: a job that does not exist is another problem.
    parse=str,
    default="",
    schema={"max_length": 64, "examples": ["019aa6d0f48b3f6c2e9d1a7b4c5d6e7f"]},
)
IDEMPOTENCY_KEY: Final = idempotency_key(
    "a repeat of it gets the same job, and adds none, for as long as the job is kept."
)
IF_MATCH: Final = _entity_tags("If-Match", "ETags of the job: only if it is still at one of them.")
IF_NONE_MATCH: Final = _entity_tags("If-None-Match", "The ETag of the job as the client has it.")
PREFER: Final[Parameter[Preferences]] = Parameter(
    name="Prefer",
    location="header",
    description="`wait=25`: park while the job has that ETag.",
    parse=parse_prefer,
    default=Preferences(),
    is_list=True,
)
STATE: Final[Parameter[JobState | None]] = Parameter(
    name="state",
    location="query",
    description="Only jobs in this state.",
    parse=_parse_state,
    default=None,
    type=State,
)
HANDLER: Final = key_filter("handler", "Only jobs of this handler.")
PAUSED_HANDLER: Final = key_filter(
    "handler",
    "The handler. Its name is not checked, as another service may have it: see `unknown`. Exactly "
    "one of `handler` and `all=true` is needed.",
)
ALL_HANDLERS: Final = _flag("all", "`true`: all handlers.")
KEY: Final = key_filter("key", "Only jobs with this watch key.")
CONCURRENCY_KEY: Final = key_filter(
    "concurrency_key", "Only jobs with this concurrency key, whichever client added them."
)
BLOCKED: Final = _flag(
    "blocked",
    "`true`: only jobs that are due and wait for a place of their handler, or until it is resumed: "
    "`blocked_by` is not null.",
)
ALL_FAILED: Final = _flag(
    "all",
    "`true`: all failed jobs, or all that match. One of `handler`, `key` and `all=true` is needed.",
)
LIMIT: Final = whole_number("limit", default=100, description="Jobs in the response.")
AFTER: Final[Parameter[str | None]] = Parameter(
    name="after",
    location="query",
    description="Continues the page before: use its `next` as it is.",
    parse=str,
    default=None,
    schema={"max_length": 64},
)

ADD: Final = Parameters(IDEMPOTENCY_KEY)
GET: Final = Parameters(JOB_ID, IF_NONE_MATCH, PREFER)
CHANGE: Final = Parameters(JOB_ID, IF_MATCH)
LIST: Final = Parameters(STATE, HANDLER, KEY, CONCURRENCY_KEY, BLOCKED, LIMIT, AFTER)
PAUSE: Final = Parameters(PAUSED_HANDLER, ALL_HANDLERS)
RETRY: Final = Parameters(HANDLER, KEY, ALL_FAILED, LIMIT, AFTER)


def parse_paused_handler(raw: RawRequest) -> str | None:
    """Return the handler to pause or resume, None for all; raise Problem unless one is chosen."""
    _refuse_body(raw, "?handler=NAME or ?all=true")
    values = PAUSE.parse(raw)
    handler = values[PAUSED_HANDLER]
    if values[ALL_HANDLERS] == (handler is not None):
        given = "neither is" if handler is None else "both are"
        raise bad_parameter(
            "handler",
            f"exactly one of handler and all=true is needed, and {given} given",
            "?handler=NAME, ?all=true",
        )
    return handler


def parse_retry(raw: RawRequest) -> ParameterValues:
    """Return which failed jobs to retry; raise Problem unless the request chooses some, or all."""
    _refuse_body(raw, "?handler=NAME, ?key=KEY or ?all=true")
    values = RETRY.parse(raw)
    if values[HANDLER] is None and values[KEY] is None and not values[ALL_FAILED]:
        raise bad_parameter(
            "handler",
            "nothing says which failed jobs",
            "?handler=NAME, ?key=KEY, both, ?all=true",
        )
    return values


def _refuse_body(raw: RawRequest, parameters: str) -> None:
    """Raise Problem for a request with a body: ignored, it would not choose what it names."""
    lengths = raw.headers_named(b"content-length")
    if raw.headers_named(b"transfer-encoding") or any(length.strip("0") for length in lengths):
        raise bad_parameter(
            "body",
            f"the request has a body, which this endpoint does not read: choose with {parameters}",
            "no body",
        )
