"""The parameters of streams: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from purgatory.fastapi.http.parameters import MAX_QUERY_FIELDS, Parameter, Parameters
from purgatory.fastapi.http.problems import ALLOWED_KEY, bad_parameter
from purgatory.fastapi.http.wait_duration import WAIT_PATTERN, wait_seconds
from purgatory.fastapi.watch.parameters import CURSOR, KEY, WAIT_ID, WatchParameters
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits

# A part for each log of signals that has a key, 40 characters at most.
MAX_CURSOR: Final = 4000

LAST_EVENT_ID: Final[Parameter[str | None]] = Parameter(
    name="Last-Event-ID",
    location="header",
    description="The id of the last event of a stream: it resumes after that. Precedes `cursor`.",
    parse=str,
    default=None,
    schema={"examples": ["8c1f0a9be2d4-1"]},
)
_STREAM_CURSOR: Final[Parameter[str | None]] = Parameter(
    name="cursor",
    location="query",
    description="The id of an event, or a cursor of these keys; 0: the earliest that has all "
    "signals of each key; without it: from now.",
    parse=str,
    default=None,
    schema={"max_length": MAX_CURSOR, "examples": ["8c1f0a9be2d4-1"]},
)


def _parse_wait(text: str) -> float:
    return wait_seconds(text, "wait")


class StreamParameters:
    """The parameters of streams, which depend on limits and settings."""

    def __init__(self, limits: Limits, settings: WaitSettings) -> None:
        """Bound the number of keys by `limits`; `settings` has the default of `wait`."""
        self.max_keys = limits.max_keys_per_operation
        self.wait: Parameter[float | None] = Parameter(
            name="wait",
            location="query",
            description=f"Seconds that the stream lasts at most: {settings.max_stream:g} by "
            "default, and more is taken as that. 0 sends what there is, and ends.",
            parse=_parse_wait,
            default=None,
            schema={"pattern": WAIT_PATTERN, "examples": ["600"]},
        )
        self.keys: Parameter[Any] = Parameter(
            name="key",
            location="query",
            description="A key; several as several parameters.",
            parse=str,
            default=(),
            type=list[str],
            schema={"min_length": 1, "max_length": self.max_keys, "examples": [["a", "b"]]},
            is_required=True,
        )
        self.one = Parameters(KEY, CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID)
        self.several = Parameters(_STREAM_CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID)
        self.documented_several = Parameters(
            self.keys, _STREAM_CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID
        )

    def with_stream(self, watch: WatchParameters) -> Parameters:
        """Return the parameters of a wait and of a stream, at the address that they share."""
        return Parameters(*watch.all.declared, LAST_EVENT_ID)


def split_keys(query_string: bytes, max_keys: int) -> tuple[tuple[str, ...], bytes]:
    """Return the keys in a query, each once, and the query without them; raise Problem."""
    found: dict[str, None] = {}
    rest: list[bytes] = []
    if query_string.count(b"&") >= max_keys + MAX_QUERY_FIELDS:
        raise bad_parameter(
            "query",
            f"the query has {query_string.count(b'&') + 1} parameters",
            f"1 to {max_keys} keys, and up to {MAX_QUERY_FIELDS} others",
        )
    for field in query_string.split(b"&"):
        name, _, value = field.partition(b"=")
        if name != b"key":
            rest.append(field)
            continue
        try:
            found[unquote_to_bytes(value.replace(b"+", b" ")).decode()] = None
        except UnicodeDecodeError:
            raise bad_parameter("key", "a key in the query is not UTF-8", ALLOWED_KEY) from None
    if not 1 <= len(found) <= max_keys:
        raise bad_parameter(
            "key",
            f"the query has {len(found)} keys",
            f"1 to {max_keys} keys, as in ?key=a&key=b",
        )
    return tuple(found), b"&".join(rest)
