"""Signatures of callbacks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory.jobs.callbacks import verify_signature
from purgatory.jobs.callbacks.headers import key_id, sign
from tests.cases import cases

SECRET = "a secret of some length"
REQUEST: dict[str, Any] = {
    "method": "POST",
    "url": "https://shop.example/hook?a=1",
    "job_id": "0" * 32,
    "body": b'{"order": 7}',
}


@cases(
    "header",
    ["", "t=1", "v2=ab", "t=x,v1=" + "0" * 64, "t=1,v1=" + "0" * 64, "t=1,kid=0,v2=" + "0" * 64],
)
def test_malformed_headers_are_no_signatures(header: str) -> None:
    """False, and nothing is raised."""
    assert not verify_signature(SECRET, header, **REQUEST, now=1)
    assert verify_signature(SECRET, sign(SECRET, timestamp=1, **REQUEST), **REQUEST, now=1)


@given(
    st.sampled_from(sorted(REQUEST)),
    st.one_of(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(["", "\n", "."])),
)
def test_each_part_of_the_request_is_covered(part: str, other: str) -> None:
    """Another method, URL, id or body has another signature: nothing can be relayed."""
    header = sign(SECRET, timestamp=1, **REQUEST)
    changed = REQUEST | {part: other.encode() if part == "body" else other}
    assert verify_signature(SECRET, header, **changed, now=1) is (changed == REQUEST)


def test_equivalent_urls_have_one_signature() -> None:
    """An empty path is a slash, and a host has no case."""
    header = sign(SECRET, timestamp=1, **REQUEST | {"url": "https://Shop.example"})
    request = REQUEST | {"url": "https://shop.example/"}
    assert verify_signature(SECRET, header, **request, now=1)
    assert not verify_signature(SECRET, header, **request | {"url": "https://[x"}, now=1)


def test_the_end_of_each_part_is_unambiguous() -> None:
    """The beginning of a body is not taken for the end of an id."""
    header = sign(SECRET, timestamp=1, **REQUEST | {"job_id": "a", "body": b"b\nc"})
    assert verify_signature(SECRET, header, **REQUEST | {"job_id": "a", "body": b"b\nc"}, now=1)
    moved = REQUEST | {"job_id": "a\nb", "body": b"c"}
    assert not verify_signature(SECRET, header, **moved, now=1)


def test_a_signature_names_its_secret() -> None:
    """A receiver with two secrets knows which to try, and the id is no part of the secret."""
    header = sign(SECRET, timestamp=1, **REQUEST)
    assert f",kid={key_id(SECRET)}," in header
    assert key_id(SECRET) != key_id("another secret of some length")
    forged = header.replace(key_id(SECRET), key_id("another secret of some length"))
    assert not verify_signature("another secret of some length", forged, **REQUEST, now=1)


@cases("now, is_valid", [(700, True), (1300, True), (699, False)])
def test_a_signature_is_valid_for_a_while(now: float, is_valid: bool) -> None:
    """Five minutes unless the receiver says otherwise, as clocks differ in both directions."""
    header = sign(SECRET, timestamp=1_000, **REQUEST)
    assert verify_signature(SECRET, header, **REQUEST, now=now) is is_valid
    assert verify_signature(SECRET, header, **REQUEST, now=now, tolerance=301)
    assert not verify_signature(SECRET, header, **REQUEST, now=1_301)
    assert verify_signature(SECRET.encode(), header, **REQUEST, now=1_000)
