"""What clients make of their arguments, and of problems: without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.client import AsyncClient, Client, JobNotFoundError
from purgatory.client.requests import base_url, follow_cursor, job_body
from purgatory.client.values import error_of_problem
from tests.cases import cases

URL = "http://127.0.0.1:1"


@given(
    job_id=st.text(min_size=1, max_size=64).filter(lambda text: text not in ("run", "retry")),
    suffix=st.sampled_from(["", "/run", "/retry"]),
    prefix=st.sampled_from(["", "/purgatory", "/jobs/purgatory"]),
)
def test_an_unknown_job_is_named_by_its_id(job_id: str, suffix: str, prefix: str) -> None:
    """Whatever the request was to do with it."""
    instance = f"{prefix}/jobs/{quote(job_id, safe='')}{suffix}"
    problem = {"type": "/purgatory/problems/unknown-job", "instance": instance}
    error = error_of_problem(404, problem)
    assert isinstance(error, JobNotFoundError) and error.job_id == job_id


def test_the_cursor_of_a_stream() -> None:
    """One for all keys, also out of a mapping; else the error says so before any request."""
    assert follow_cursor(("a", "b"), None) is None
    assert follow_cursor(("a",), {"a": "c-1", "b": "c-2"}) == "c-1"
    assert follow_cursor(("a", "b"), {"a": "c-1", "b": "c-1"}) == "c-1"
    assert follow_cursor(("a", "b"), {}) is None
    wrong: Any = 7
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="follow each key by itself"):
            kind(URL).follow("a", "b", cursor={"a": "c-1", "b": "c-2"})
        with pytest.raises(ValueError, match="follow each key by itself"):
            kind(URL).follow("a", "b", cursor={"a": "c-1"})
        with pytest.raises(TypeError, match="give a string"):
            kind(URL).follow("a", cursor=wrong)


def test_a_time_has_a_zone() -> None:
    """A text is a TypeError that says what to pass."""
    text: Any = "2027-01-01"
    with pytest.raises(TypeError, match="datetime with its zone"):
        job_body("note", None, {"at": text})
    with pytest.raises(ValueError, match="zone"):
        job_body("note", None, {"at": datetime(2027, 1, 1)})
    assert job_body("note", None, {"at": datetime(2027, 1, 1, tzinfo=UTC)})["at"]


def test_the_options_of_a_job_are_those_of_python() -> None:
    """As the server takes them: seconds, and a count of keys."""
    options = {"delay": timedelta(seconds=2), "ceiling": 9, "until": 2, "misfire": None}
    body = {"handler": "note", "payload": 1, "delay": 2.0, "ceiling": 9, "until": {"count": 2}}
    assert job_body("note", 1, options) == body


@cases("url", ["localhost", "localhost:80", "http://", "http://a:b", "ftp://a"])
def test_an_address_has_a_host(url: str) -> None:
    """The error names the form."""
    with pytest.raises(ValueError, match="http://host:port"):
        base_url(url, "/purgatory")


@cases("token", ["", "secret\n", "sec ret", "secr\u00e9t", "\r\nX-Other: secret"])
def test_a_token_fits_into_a_header(token: str) -> None:
    """Else each request would fail as if the server were away, and the error would show it."""
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"token is empty, or has .* strip") as caught:
            kind(URL, token=token)
        assert "secr" not in str(caught.value)
        kind(URL, token="secret~+/._-==")


@cases("name", ["", "a\n", " a", "a ", "\u00e9", "x" * 256])
def test_the_name_of_a_request_fits_into_a_header(name: str) -> None:
    """Else it would be repeated as if the server were away, or have another name each time."""
    with Client(URL) as client:
        with pytest.raises(ValueError, match=r"idempotency_key is .*: give 1 to 255 printable"):
            client.fire("k", idempotency_key=name)
        with pytest.raises(ValueError, match=r"idempotency_key is .*: give 1 to 255 printable"):
            client.defer("note", delay=1, idempotency_key=name)
