"""Parameters and bodies, as endpoints declare them."""

from __future__ import annotations

from typing import Final

import pytest

from purgatory import Limits, Purgatory
from purgatory.fastapi.http.parameters import (
    MAX_DIGITS,
    MAX_QUERY_BYTES,
    NO_VALUES,
    Parameter,
    Parameters,
    whole_number,
)
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.request_headers import Preferences, parse_prefer, wait_seconds
from purgatory.fastapi.jobs import parameters as job_parameters
from purgatory.fastapi.keys.schemas import LIST, PREFIX
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
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


def test_what_is_not_given_has_its_default() -> None:
    """Without any parameter all requests share one set of values."""
    values = PARAMETERS.parse(_raw())
    assert values is NO_VALUES and not values
    assert (values[LIMIT], values[LIST_HEADER]) == (5, Preferences())
    given = PARAMETERS.parse(_raw(b"limit=9"))
    assert given[LIMIT] == 9 and given[LIST_HEADER] == Preferences()
    assert given.by_name() == {"limit": 9}
    assert not NO_VALUES


def test_the_bounds_of_a_whole_number_are_allowed() -> None:
    """Both of them."""
    assert (LIMIT.parse("1"), LIMIT.parse("9")) == (1, 9)
    assert LIMIT.parse("9".zfill(MAX_DIGITS)) == 9
    with pytest.raises(Problem, match="a whole number"):
        LIMIT.parse("9".zfill(MAX_DIGITS + 1))


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
    tags = job_parameters.CHANGE.parse(twice)[job_parameters.IF_MATCH]
    assert tags is not None and tags.opaque_tags == {b'"1"', b'"2"'}


def test_preferences_of_any_length() -> None:
    """Long ones are parsed each time."""
    assert parse_prefer("x," * 300 + "wait=3") == Preferences(3.0)


def test_units_of_a_wait() -> None:
    """Seconds without one."""
    texts = ("0", "25", "2.5", "500ms", "3s", "2m", "0.5m")
    assert [wait_seconds(text, "wait") for text in texts] == [0, 25, 2.5, 0.5, 3, 120, 30]


def test_a_wait_has_a_default_and_a_maximum() -> None:
    """The maximum is said in Preference-Applied, as is what Prefer asked for."""
    assert (_watch(b"").terms.wait, _watch(b"").terms.applied) == (4.0, ())
    assert (_watch(b"wait=6").terms.wait, _watch(b"wait=6").terms.applied) == (6.0, ())
    assert _watch(b"wait=7").terms.applied == ("wait=6",)
    preferred = _watch(b"", (b"prefer", b"wait=3, return=minimal")).terms
    assert (preferred.wait, preferred.applied) == (3.0, ("wait=3", "return=minimal"))
    assert _watch(b"wait=1", (b"prefer", b"wait=3")).terms.wait == 1.0
    assert _watch(b"wait=0").terms.timeout == 0.0


def test_a_cursor_in_the_query_comes_before_an_etag() -> None:
    """Which still has to be one: as OpenAPI says."""
    head = PURGATORY.signals.cursor(PURGATORY.signals.head())
    etag = (b"if-none-match", f'"{head}"'.encode())
    assert _watch(b"", etag).terms.is_conditional
    assert not _watch(f"cursor={head}".encode(), etag).terms.is_conditional
    assert not _watch(f"cursor={head}".encode(), (b"if-none-match", b'"x"')).terms.is_conditional
    with pytest.raises(Problem):
        _watch(f"cursor={head}".encode(), (b"if-none-match", b"x"))
    with pytest.raises(Problem, match="one cursor in quotes"):
        _watch(b"", (b"if-none-match", b"x"))


def test_polls_with_other_cursors_share_their_terms() -> None:
    """There are as many of them as parked requests."""
    head = PURGATORY.signals.cursor(PURGATORY.signals.head())
    assert _watch(f"cursor={head}&limit=7".encode()).terms is _watch(b"limit=7&cursor=0").terms


def test_the_limits_bound_the_signals_to_wait_for() -> None:
    """As many as are kept."""
    assert _watch(b"min=7").terms.min_signals == 7
    with pytest.raises(Problem, match="from 1 to 7"):
        _watch(b"min=8")


def test_a_prefix_may_be_empty() -> None:
    """Every key begins with it."""
    assert LIST.parse(_raw(b"prefix="))[PREFIX] == ""


def test_a_declaration_has_the_bounds_of_its_endpoint() -> None:
    """The end of the path, the size of the body, and whether its type is checked."""
    spec = EndpointSpec(
        name="n",
        method="POST",
        path="/jobs/{id}",
        summary="S",
        description="D",
        action=None,
        parameters=job_parameters.CHANGE,
        body=PARSER.body,
        response_description="R",
        problems=("full",),
    )
    assert (spec.path_parameter, spec.max_body) == ("id", PARSER.body.max_bytes)
    assert spec.takes_content
    assert list(spec.signature.parameters) == ["body", "id", "if_match"]
    assert spec.all_problems == ("bad-parameter", "full")
