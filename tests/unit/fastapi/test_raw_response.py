"""Answers, in both forms."""

from __future__ import annotations

from purgatory.fastapi.http.raw_response import CLOSE, RawResponse, encoded

START = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "JSON": RawResponse.from_json(200, b'{"a":1}'),
    "JSON, and more": RawResponse.from_json(
        201, b"[]", b'etag: "e-1"\r\npreference-applied: wait=5\r\n'
    ),
    "the last one": RawResponse.from_json(200, b"{}", CLOSE),
    "empty": RawResponse.empty(204, b"purgatory-cursor: e-1\r\n"),
    "a problem": RawResponse(429, encoded({"Retry-After": "3", "X": ""}), b"{}"),
    "no headers": RawResponse(200, (), b"text"),
}


def test_both_forms_say_the_same() -> None:
    """The same headers in the same order, and the same body."""
    for answer in ANSWERS.values():
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in answer.headers)
        assert answer.encoded(START) == START + lines + b"\r\n" + answer.body
        more = b"connection: close\r\n"
        assert answer.encoded(START, more) == START + lines + more + b"\r\n" + answer.body
        assert answer.is_last == (b"connection: close" in lines)


def test_json_has_its_length_and_is_not_stored() -> None:
    """What every answer of JSON has comes first."""
    assert ANSWERS["JSON, and more"].headers == [
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"cache-control", b"no-store"),
        (b"etag", b'"e-1"'),
        (b"preference-applied", b"wait=5"),
    ]


def test_headers_are_the_callers() -> None:
    """Middleware edits them: who is told the same answer next must not see that."""
    answer = RawResponse.from_json(200, b"{}")
    answer.headers.append((b"x", b"y"))
    assert (b"x", b"y") not in answer.headers
