"""How long a server puts a client off: the header Retry-After."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from purgatory.client.commands import Reply

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
