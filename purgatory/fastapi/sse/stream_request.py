"""Parsed requests for streams."""

from __future__ import annotations

from typing import NamedTuple

from purgatory.fastapi.watch.request import WatchRequest


class StreamRequest(NamedTuple):
    """A stream on one key or several, checked."""

    watch: WatchRequest
    """Its wait is how long the stream may last."""
    is_from_now: bool
    """No cursor was given: the stream begins with one."""
