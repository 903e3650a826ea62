"""The parameters of waits: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

import re
import uuid
from typing import Final

from purgatory.fastapi.http.parameters import Parameter, Parameters, whole_number
from purgatory.fastapi.http.preferences import Preferences, parse_prefer
from purgatory.fastapi.http.problems import bad_parameter
from purgatory.fastapi.http.schemas import KEY_PATTERN
from purgatory.fastapi.http.wait_duration import WAIT_PATTERN, wait_seconds
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits

# As in RFC 9562, or without hyphens; each also in braces, or as a URN. For OpenAPI too: a regular
# expression that JavaScript also reads.
_ID: Final = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32}"
WAIT_ID_PATTERN: Final = rf"^(urn:uuid:)?({_ID}|\{{({_ID})\}})$"
_WAIT_ID: Final = re.compile(WAIT_ID_PATTERN)
# Without the characters that no header can hold.
ETAG_CURSOR_PATTERN: Final = r'^(W/)?"[ !#-~]*"$'


def parse_etag_cursor(text: str) -> str:
    """Return the cursor in an If-None-Match of one entity tag; raise Problem."""
    tag = text.strip().removeprefix("W/")
    if len(tag) < 2 or tag[0] != '"' or tag[-1] != '"' or '"' in tag[1:-1]:
        raise bad_parameter(
            "If-None-Match",
            f"If-None-Match is {text[:64]!r}",
            'one cursor in quotes: "<cursor>"',
        )
    return tag[1:-1]


def parse_wait_id(text: str) -> str:
    """Return a Wait-Id in its canonical spelling; raise Problem if it is not a UUID."""
    # `uuid.UUID` alone takes signs and underscores for digits.
    if _WAIT_ID.fullmatch(text) is None:
        raise bad_parameter("Wait-Id", f"Wait-Id is {text[:64]!r}", "a UUID")
    return str(uuid.UUID(text))


def _parse_wait(text: str) -> float:
    return wait_seconds(text, "wait")


KEY: Final[Parameter[str]] = Parameter(
    name="key",
    location="path",
    description="The key; a slash in it may be written as it is or percent-encoded.",
    # The path is decoded by the server, and `RawRequest.key` checks how.
    parse=str,
    default="",
    schema={
        "min_length": 1,
        "max_length": 256,
        "pattern": KEY_PATTERN,
        "examples": ["order:42:paid"],
    },
)
CURSOR: Final[Parameter[str | None]] = Parameter(
    name="cursor",
    location="query",
    description="From an earlier response; 0: the earliest kept; without it: from now.",
    parse=str,
    default=None,
    schema={"max_length": 64, "examples": ["8c1f0a9be2d4-1"]},
)
LIMIT: Final = whole_number("limit", default=100, description="Signals in the response.")
IF_NONE_MATCH: Final[Parameter[str | None]] = Parameter(
    name="If-None-Match",
    location="header",
    description='`"<cursor>"`: a wait that expires ends with 304.',
    # Parsed with the query: beside `cursor` it does not matter, but has to be well-formed.
    parse=str,
    default=None,
    schema={"pattern": ETAG_CURSOR_PATTERN},
)
PREFER: Final[Parameter[Preferences]] = Parameter(
    name="Prefer",
    location="header",
    description="`wait=25`, and `return=minimal` for 204 in place of an empty 200.",
    parse=parse_prefer,
    default=Preferences(),
    schema={"examples": ["wait=25"]},
    is_list=True,
)
WAIT_ID: Final[Parameter[str | None]] = Parameter(
    name="Wait-Id",
    location="header",
    description="A UUID that names this wait.",
    parse=parse_wait_id,
    default=None,
    schema={"pattern": WAIT_ID_PATTERN},
)
ENDED_WAIT_ID: Final[Parameter[str]] = Parameter(
    name="id",
    location="path",
    description="A Wait-Id.",
    parse=parse_wait_id,
    default="",
    schema={"pattern": WAIT_ID_PATTERN},
)

WATCH_SEVERAL: Final = Parameters(PREFER, WAIT_ID)
END_WAIT: Final = Parameters(ENDED_WAIT_ID)


class WatchParameters:
    """The parameters of a wait for one key, which depend on limits and settings."""

    def __init__(self, limits: Limits, settings: WaitSettings) -> None:
        """Bound `min` by `limits`; `settings` has the default of `wait`, and its maximum."""
        self.wait: Parameter[float | None] = Parameter(
            name="wait",
            location="query",
            description="Seconds, or with a unit: 500ms, 25s, 1m. 0 asks and does not park; "
            f"the default is {settings.default_wait:g} s, more than "
            f"{settings.max_wait:g} s is taken as that.",
            parse=_parse_wait,
            default=None,
            documented_default=f"{settings.default_wait:g}",
            schema={"pattern": WAIT_PATTERN, "examples": ["25", "500ms"]},
        )
        self.min_signals = whole_number(
            "min",
            default=1,
            maximum=limits.max_signals_per_key,
            description="Park until there are so many signals: as many as are kept, at most.",
        )
        self.all = Parameters(
            KEY, CURSOR, self.wait, LIMIT, self.min_signals, IF_NONE_MATCH, PREFER, WAIT_ID
        )
