"""URLs in errors and logs."""

from __future__ import annotations

from purgatory.log_text import redacted
from tests.cases import cases


@cases(
    "url, shown",
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
        ("redis://:secret", "redis://***"),
        ("redis://:secret:6379/0", "redis://***"),
        ("postgresql://user:secret/name", "postgresql://***"),
        ("postgresql:user:secret", "***"),
        ("host=db password=secret", "***"),
        ("host=db password=sec@ret", "***"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sqlite:////a folder/jobs.db", "sqlite:////a folder/jobs.db"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("nonsense", "nonsense"),
        ("", ""),
        ("x" * 1_000, "x" * 200),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """Also one that is none, where nobody can say what is a password of it."""
    assert redacted(url) == shown
