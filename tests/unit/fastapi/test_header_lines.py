"""The header lines of a request, read once."""

from __future__ import annotations

import gc

from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.fastapi.servers import request_reader
from purgatory.fastapi.servers.request_reader import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    HeaderLines,
    HeaderReader,
)
from purgatory.jobs.callbacks import http_connection
from tests.cases import cases

names = st.sampled_from(["Host", "accept", "X-A", "Prefer", "content-length", "Connection"])
values = st.text("abc019 ,;=-\t", max_size=8)


def _lines(*headers: str) -> bytes:
    return "".join(f"\r\n{header}" for header in headers).encode("latin-1")


def _read(*headers: str) -> HeaderLines:
    found = HeaderReader().read(_lines(*headers))
    assert found is not None
    return found


@given(st.lists(st.tuples(names, values), max_size=6))
@example([])
def test_each_header_is_found_by_its_name(headers: list[tuple[str, str]]) -> None:
    """In its order, its value without the white space around it."""
    block = _lines(*(f"{name}: {value}" for name, value in headers))
    found = HeaderLines(block)
    expected = [(name.lower(), value.strip(" \t")) for name, value in headers]
    for name, _ in expected:
        encoded = name.encode()
        assert encoded in found.names
        assert found.named(encoded, block) == [value for other, value in expected if other == name]
    assert b"other" not in found.names


def test_framing_that_takes_a_parser() -> None:
    """Whatever may be read in two ways is not read here."""
    for headers, is_plain in [
        (["Host: h"], True),
        (["Content-Length: 12"], True),
        (["Content-Length:\t12 "], True),
        (["Content-Length: 12", "content-length: 12"], False),
        (["Content-Length: +12"], False),
        (["Content-Length: 1234567890"], False),
        (["Content-Length: \xb2"], False),
        (["Content-Length:"], False),
        (["Transfer-Encoding: chunked"], False),
        (["Upgrade: websocket"], False),
        (["Expect: 100-continue", "Content-Length: 1"], True),
        (["Expect: 100-continue"], False),
        (["Expect: more", "Content-Length: 1"], False),
        (["Connection: keep-alive , close"], False),
        (["Connection: \xa0close"], False),
        (["Connection: closed"], False),
        (["Proxy-Connection: x"], False),
    ]:
        found = _read(*headers)
        assert found.is_plain is is_plain


@cases(
    "headers, closes",
    [
        ([], False),
        (["Connection: keep-alive"], False),
        (["Connection: Close"], True),
        (["Connection: keep-alive", "connection: close"], True),
        (["Connection: keep-alive", "Proxy-Connection: close"], True),
    ],
)
def test_connection_close(headers: list[str], *, closes: bool) -> None:
    """In any spelling, and under the name that llhttp takes for the same."""
    assert _read(*headers).closes is closes


@cases(
    "lines",
    [
        b"\r\nhost",
        b"\r\n: h",
        b"\r\nho st: h",
        b"\r\na: 1\r\n folded",
        b"\r\na: \x00",
        b"\r\na: 1\n2",
    ],
)
def test_lines_that_are_not_well_formed(lines: bytes) -> None:
    """They are for a parser that says so."""
    assert HeaderReader().read(lines) is None


def test_the_same_lines_are_read_once() -> None:
    """One object for all that send the same, and another for whoever differs."""
    reader = HeaderReader()
    first = reader.read(_lines("Host: h", "X-A: 1"))
    assert reader.read(_lines("Host: h", "X-A: 1")) is first
    assert reader.read(_lines("Host: h", "X-A: 2")) is not first


@cases("name", ["Authorization", "proxy-authorization", "Cookie", "X-Api-Key", "Private-Token"])
def test_credentials_are_not_remembered(name: str) -> None:
    """Nor is any header that is not known to hold none; its block is read once all the same."""
    reader = HeaderReader()
    block = _lines("Host: plain", f"{name}:  secret ", "Accept: */*", f"{name}: b")
    found = reader.read(block)
    assert found is not None and reader.read(block) is found
    assert found.named(name.lower().encode(), block) == ["secret", "b"]
    other = _lines("Host: plain", f"{name}:  sacred ", "Accept: */*", f"{name}: b")
    assert reader.read(other) is not found
    reader.read(_lines("Host: plain"))
    kept = _bytes_in(reader)
    assert b"plain" in kept and b"secret" not in kept and b"sacred" not in kept


def _bytes_in(held: object) -> bytes:
    """Return all bytes that an object holds, directly or not."""
    if isinstance(held, bytes):
        return held
    parts = () if isinstance(held, type) else gc.get_referents(held)
    return b" ".join(map(_bytes_in, parts))


def test_what_is_remembered_is_bounded() -> None:
    """Neither many different lines nor long ones stay."""
    reader = HeaderReader()
    for number in range(3 * MAX_REMEMBERED):
        reader.read(_lines(f"X-A: {number}"))
    assert len(reader) <= MAX_REMEMBERED
    for name in ("Host", "X-A"):
        long = _lines(f"{name}: " + MAX_REMEMBERED_BYTES * "a")
        assert reader.read(long) is not reader.read(long)


def test_no_pattern_tries_each_of_many_blanks() -> None:
    """A lazy group before blanks is quadratic in those within a value: 60 kB took minutes."""
    patterns = (request_reader._LINE, request_reader._LINES, http_connection._RETRY_AFTER)
    assert [each.pattern for each in patterns if b"?)[ \\t]*" in each.pattern] == []
    block = _lines("X-A: a" + 10_000 * " " + "b \t", "X-B: \t 5 ")
    found = HeaderReader().read(block)
    assert found is not None
    assert found.named(b"x-a", block) == ["a" + 10_000 * " " + "b"]
    assert found.named(b"x-b", block) == ["5"]
