"""Parameters and bodies, as endpoints declare them."""

from __future__ import annotations

from typing import Final

import pytest

from purgatory import Limits, Purgatory
from purgatory.fastapi.http.parameters import (
    MAX_QUERY_BYTES,
    Parameter,
    Parameters,
    whole_number,
)
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.request_headers import Preferences, parse_prefer
from purgatory.fastapi.keys.schemas import FIRE, IF_MATCH
from purgatory.fastapi.watch.request_parser import WatchParser, WatchRequest
from purgatory.fastapi.watch.settings import WaitSettings
from tests.cases import cases

PURGATORY: Final = Purgatory(limits=Limits(max_signals_per_key=7))
PARSER: Final = WatchParser(PURGATORY, WaitSettings(default_wait=4.0, max_wait=6.0))
LIMIT: Final = whole_number("limit", default=5, maximum=9, description="A number.")
LIST_HEADER: Final[Parameter[Preferences]] = Parameter(
    name="Prefer",
    location="header",
    description="Preferences.",
    parse=parse_prefer,
    default=Preferences(),
    is_list=True,
)
PARAMETERS: Final = Parameters(LIMIT, LIST_HEADER)


def _raw(query: bytes = b"", *headers: tuple[bytes, bytes], body: bytes = b"") -> RawRequest:
    return RawRequest("/watch/k", b"/watch/k", query, headers, "k", body)


def _errors(parameters: Parameters, raw: RawRequest) -> list[str]:
    with pytest.raises(Problem) as caught:
        parameters.parse(raw)
    assert (caught.value.kind.slug, caught.value.status) == ("bad-parameter", 422)
    members = caught.value.members
    return [error["param"] for error in members.get("errors", [members])]


def _watch(query: bytes, *headers: tuple[bytes, bytes]) -> WatchRequest:
    return PARSER.parse(_raw(query, *headers))


def test_an_escaped_query_is_read_as_a_plain_one() -> None:
    """Whichever of the two ways it is read."""
    assert PARAMETERS.parse(_raw(b"%6cimit=%37"))[LIMIT] == 7


@cases("is_escaped", [True, False])
def test_a_query_has_up_to_4096_bytes(*, is_escaped: bool) -> None:
    """Whichever of the two ways it is read."""
    text = Parameter(name="text", location="query", description="A text.", parse=str, default="")
    query = (b"te%78t=" if is_escaped else b"text=").ljust(MAX_QUERY_BYTES, b"1")
    assert len(Parameters(text).parse(_raw(query))[text]) == MAX_QUERY_BYTES - query.index(b"1")
    assert _errors(Parameters(text), _raw(query + b"1")) == ["query"]


def test_lines_of_a_list_are_one_value() -> None:
    """In the order of the lines."""
    raw = _raw(b"", (b"prefer", b"wait=2"), (b"prefer", b"return=minimal"))
    assert PARAMETERS.parse(raw)[LIST_HEADER] == Preferences(2.0, is_minimal=True)
    twice = _raw(b"", (b"if-match", b'"1"'), (b"if-match", b'"2"'))
    tags = FIRE.parse(twice)[IF_MATCH]
    assert tags is not None and tags.opaque_tags == {b'"1"', b'"2"'}


def test_polls_with_other_cursors_share_their_terms() -> None:
    """There are as many of them as parked requests."""
    head = PURGATORY.signals.cursor(PURGATORY.signals.head())
    assert _watch(f"cursor={head}&limit=7".encode()).terms is _watch(b"limit=7&cursor=0").terms
