"""The parameters of the dashboard's endpoints."""

from __future__ import annotations

from typing import Final, Literal

from purgatory.fastapi.dashboard.wait_list import SortKey, WaitFilter, parse_after
from purgatory.fastapi.http.parameters import (
    Parameter,
    Parameters,
    ParameterValues,
    key_filter,
    prefix_filter,
    whole_number,
)
from purgatory.fastapi.http.problems import bad_parameter


def _parse_order(text: str) -> str:
    if text not in ("age", "deadline"):
        raise bad_parameter("order", f"order is {text[:64]!r}", "age, deadline")
    return text


def _parse_after(text: str) -> SortKey:
    after = parse_after(text)
    if after is None:
        raise bad_parameter(
            "after",
            f"after is {text[:64]!r}, which no page ended with",
            "the `next` of the page before, as it is; left out for the first page",
        )
    return after


KEY: Final = key_filter("key", "Only waits on this key.")
PREFIX: Final = prefix_filter("Only waits on keys that begin with this.")
ORDER: Final[Parameter[str]] = Parameter(
    name="order",
    location="query",
    description="`age`: the oldest first; `deadline`: those that expire next first.",
    parse=_parse_order,
    default="age",
    documented_default="age",
    type=Literal["age", "deadline"],
)
LIMIT: Final = whole_number("limit", default=100, description="Waits in the response.")
AFTER: Final[Parameter[SortKey | None]] = Parameter(
    name="after",
    location="query",
    description="The `next` of the page before.",
    parse=_parse_after,
    default=None,
    schema={"max_length": 64, "pattern": r"^-?\d{1,18}\.[0-9a-f]{12}\.[0-9a-f]{16}$"},
)
FILE: Final[Parameter[str]] = Parameter(
    name="file",
    location="path",
    description="A file of the page.",
    parse=str,
    default="",
    schema={"examples": ["dashboard.js"]},
)

_COUNT: Final = whole_number("limit", default=1, description="")
SNAPSHOTS: Final[Parameter[int | None]] = Parameter(
    name="limit",
    location="query",
    description="End after so many snapshots.",
    parse=_COUNT.parse,
    default=None,
    type=int,
    schema=_COUNT.schema,
)

STREAM: Final = Parameters(SNAPSHOTS)
WAITS: Final = Parameters(KEY, PREFIX, ORDER, LIMIT, AFTER)
ONE_FILE: Final = Parameters(FILE)


def wait_filter(values: ParameterValues) -> WaitFilter:
    """Return the filter that the parameters of a request describe."""
    return WaitFilter(
        key=values[KEY],
        prefix=values[PREFIX],
        is_by_deadline=values[ORDER] == "deadline",
        limit=values[LIMIT],
        after=values[AFTER],
    )
