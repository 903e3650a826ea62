"""An HTTP answer, encoded, for whichever server interface is to send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Answer:
    """A status, headers with lower-case names, and a body."""

    status: int
    headers: Headers
    body: bytes

    @classmethod
    def of_json(cls, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """Make an answer of a body that is JSON already, never to be cached."""
        return cls(
            status,
            [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                *encoded(headers or {}),
            ],
            body,
        )

    @classmethod
    def empty(cls, status: int, headers: Mapping[str, str] | None = None) -> Answer:
        """Make an answer without a body."""
        return cls(status, [(b"cache-control", b"no-store"), *encoded(headers or {})], b"")


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI has them."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
