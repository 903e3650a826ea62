"""`Long-Poll-Key`: the response header that names keys, and is not sent to the client."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import Message, Send

KEY_HEADER: Final = b"long-poll-key"

Headers = list[tuple[bytes, bytes]]


def take_keys(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, list[str]]:
    """Return the headers without ours, and the keys in ours."""
    kept: Headers = []
    keys: list[str] = []
    for name, value in headers:
        if name == KEY_HEADER:
            keys += filter(None, (key.strip() for key in value.decode("latin-1").split(",")))
        else:
            kept.append((name, value))
    return kept, keys


def without_key_header(send: Send) -> Send:
    """Return a `send` that removes our header."""

    # Not a coroutine function: that would be one coroutine more for every message.
    def send_on(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            kept = [pair for pair in headers if pair[0] != KEY_HEADER]
            message = {**message, "headers": kept}
        return send(message)

    return send_on
