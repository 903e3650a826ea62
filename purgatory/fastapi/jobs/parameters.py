"""The parameters of jobs: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

from functools import partial
from typing import Final

from purgatory.errors import InvalidKeyError
from purgatory.fastapi.http.etag import ENTITY_TAGS_PATTERN, EntityTags, parse_entity_tags
from purgatory.fastapi.http.idempotency import idempotency_key
from purgatory.fastapi.http.parameters import Parameter, Parameters, whole_number
from purgatory.fastapi.http.preferences import Preferences, parse_prefer
from purgatory.fastapi.http.problems import ALLOWED_KEY, bad_parameter
from purgatory.fastapi.http.schemas import KEY_PATTERN
from purgatory.fastapi.jobs.schemas import State
from purgatory.jobs import JobState
from purgatory.operations.watch_key import MAX_KEY_LENGTH, check_key


def _parse_state(text: str) -> JobState:
    states = [str(known) for known in JobState]
    if text not in states:
        raise bad_parameter("state", f"state is {text[:64]!r}", ", ".join(states))
    return JobState(text)


def _parse_key(text: str, name: str) -> str:
    try:
        check_key(text)
    except InvalidKeyError as exc:
        raise bad_parameter(name, f"{name}: {exc.detail}", ALLOWED_KEY) from exc
    return text


def _filter(name: str, description: str) -> Parameter[str | None]:
    return Parameter(
        name=name,
        location="query",
        description=description,
        parse=partial(_parse_key, name=name),
        default=None,
        schema={"min_length": 1, "max_length": MAX_KEY_LENGTH, "pattern": KEY_PATTERN},
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
    "a repeat of it within 24 hours gets the same job, and adds none."
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
HANDLER: Final = _filter("handler", "Only jobs of this handler.")
KEY: Final = _filter("key", "Only jobs with this watch key.")
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
LIST: Final = Parameters(STATE, HANDLER, KEY, LIMIT, AFTER)
