"""When a client tries again: after which responses, its backoff, and what Retry-After asks for."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from purgatory.client.requests import Reply
from purgatory.retry_policy import RetryPolicy

# These pass by themselves: of the server, or of a proxy before it.
UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
BACKOFF: Final = RetryPolicy(first_ms=100, max_ms=10_000)
# Seconds: a server cannot put a client off for longer.
MAX_RETRY_AFTER_S: Final = 60.0


def retry_after_s(reply: Reply) -> float:
    """Return the seconds of Retry-After (RFC 9110, 10.2.3), which may be a date; 0 without."""
    text = reply.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(reply.headers["Date"])
        return min(max(0.0, (until - now).total_seconds()), MAX_RETRY_AFTER_S)
    except (KeyError, TypeError, ValueError):
        return 0.0
