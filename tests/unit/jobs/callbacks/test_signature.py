"""Signatures of callbacks."""

from __future__ import annotations

import pytest

from purgatory.jobs.callbacks import sign, verify_signature

SECRET = "a secret of some length"


@pytest.mark.parametrize("header", ["", "t=1", "v1=ab", "t=x,v1=" + "0" * 64, "t=1,v1=" + "0" * 64])
def test_malformed_headers_are_no_signatures(header: str) -> None:
    """False, and nothing is raised."""
    assert not verify_signature(SECRET, header, "id", b"", now=1)
    assert verify_signature(SECRET, sign(SECRET, "id", 1, b""), "id", b"", now=1)


def test_a_signature_says_where_the_id_ends() -> None:
    """The beginning of a body is not taken for the end of an id."""
    header = sign(SECRET, "id", 1, b'first."second"')
    assert verify_signature(SECRET, header, "id", b'first."second"', now=1)
    assert not verify_signature(SECRET, header, "id.first", b'"second"', now=1)


@pytest.mark.parametrize(("now", "is_valid"), [(700, True), (1300, True), (699, False)])
def test_a_signature_is_valid_for_a_while(now: float, is_valid: bool) -> None:
    """Five minutes unless the receiver says otherwise, as clocks differ in both directions."""
    header = sign(SECRET, "id", 1_000, b"")
    assert verify_signature(SECRET, header, "id", b"", now=now) is is_valid
    assert verify_signature(SECRET, header, "id", b"", now=now, tolerance=301)
    assert not verify_signature(SECRET, header, "id", b"", now=1_301)
    assert verify_signature(SECRET.encode(), header, "id", b"", now=1_000)
