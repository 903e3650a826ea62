"""Parameters and bodies, as endpoints declare them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final

import pytest
from fastapi import Header, Query
from pydantic import PlainValidator

from purgatory import Limits, Purgatory
from purgatory.fastapi.http.parameters import (
    MAX_CACHED,
    MAX_QUERY_BYTES,
    SEVERAL_LINES,
    HeadParser,
    Preferences,
    WholeNumber,
    parse_prefer,
    parse_preferences,
)
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import Problem
from purgatory.fastapi.watch.request_parser import WatchParser, WatchRequest
from purgatory.fastapi.watch.settings import WaitSettings
from tests.cases import cases

PURGATORY: Final = Purgatory(limits=Limits(max_signals_per_key=7))
PARSER: Final = WatchParser(PURGATORY, WaitSettings(default_wait=4.0, max_wait=6.0))
Prefer = Annotated[Any, PlainValidator(parse_prefer), SEVERAL_LINES, Header()]


def _declared(limit: Annotated[WholeNumber, Query()] = 5, prefer: Prefer = None) -> None: ...


def _text(text: Annotated[str, Query()] = "") -> None: ...


PARAMETERS: Final = HeadParser(inspect.signature(_declared, eval_str=True))
TEXT: Final = HeadParser(inspect.signature(_text, eval_str=True))


def _raw(query: bytes = b"", *headers: tuple[bytes, bytes], body: bytes = b"") -> RawRequest:
    return RawRequest("/watch/k", b"/watch/k", query, headers, "k", body)


def _errors(parser: HeadParser, raw: RawRequest) -> list[str]:
    with pytest.raises(Problem) as caught:
        parser.parse(raw)
    assert (caught.value.kind.slug, caught.value.status) == ("bad-parameter", 422)
    members = caught.value.members
    return [error["param"] for error in members.get("errors", [members])]


def _watch(query: bytes, *headers: tuple[bytes, bytes]) -> WatchRequest:
    return PARSER.parse(_raw(query, *headers))


def test_an_escaped_query_is_read_as_a_plain_one() -> None:
    """Whichever of the two ways it is read."""
    assert PARAMETERS.parse(_raw(b"%6cimit=%37")) == {"limit": 7}


@cases("is_escaped", [True, False])
def test_a_query_has_up_to_4096_bytes(*, is_escaped: bool) -> None:
    """Whichever of the two ways it is read."""
    query = (b"te%78t=" if is_escaped else b"text=").ljust(MAX_QUERY_BYTES, b"1")
    assert len(TEXT.parse(_raw(query))["text"]) == MAX_QUERY_BYTES - query.index(b"1")
    assert _errors(TEXT, _raw(query + b"1")) == ["query"]


def test_lines_of_a_list_are_one_value() -> None:
    """In the order of the lines."""
    raw = _raw(b"", (b"prefer", b"wait=2"), (b"prefer", b"return=minimal"))
    assert PARAMETERS.parse(raw) == {"prefer": Preferences(2.0, is_minimal=True)}


def test_polls_with_other_cursors_share_their_terms() -> None:
    """There are as many of them as parked requests."""
    head = PURGATORY.signals.cursor(PURGATORY.signals.head())
    assert _watch(f"cursor={head}&limit=7".encode()).terms is _watch(b"limit=7&cursor=0").terms


def test_preferences() -> None:
    """The first of each name counts, in any case; others are ignored."""
    for headers, preferences in [
        ([], Preferences()),
        (["wait=10"], Preferences(10)),
        (["WAIT=10, wait=20"], Preferences(10)),
        (["wait=10", "wait=20, return=minimal"], Preferences(10, True)),
        (['wait="10"; x=1, Return="Minimal"'], Preferences(10, True)),
        (["return=representation, wait = 1m"], Preferences(60)),
        (["respond-async, , =, handling=lenient"], Preferences()),
        (["return"], Preferences()),
        (['note="a, wait=20", wait=10'], Preferences(10)),
        (['note="a\\", wait=20"; x="b, wait=30", return=minimal'], Preferences(is_minimal=True)),
        (['note="never closed, wait=20'], Preferences()),
    ]:
        assert parse_preferences(headers) == preferences
        joined = ", ".join(headers)
        assert parse_prefer(joined) == preferences
        assert parse_prefer(joined + ", x" * MAX_CACHED) == preferences
