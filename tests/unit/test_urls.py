"""URLs in errors and logs."""

from __future__ import annotations

import pytest

from purgatory.urls import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("redis://user:secret@host:6379/2", "redis://***@host:6379/2"),
        ("redis://:sec/ret@host", "redis://***@host"),
        ("redis://:sec@ret@host", "redis://***@host"),
        ("redis://:sec?ret@host", "redis://***@"),
        ("redis://host?password=sec@ret", "redis://***@"),
        ("redis://:sec#ret@host", "redis://***@"),
        ("redis://host/0?password=secret", "redis://host/0"),
        ("user:secret@host", "***@host"),
        ("redis:/user:secret@host", "***@host"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("nonsense", "nonsense"),
        ("", ""),
        ("x" * 1_000, "x" * 200),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """Also one that is none, where nobody can say what is a password of it."""
    assert without_password(url) == shown
