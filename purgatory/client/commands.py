"""The commands of flows to the client that runs them, and their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory.client.values import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request below the prefix; gets a Reply or a Failure."""

    method: str
    path: str
    """Percent-encoded, below the prefix."""
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """JSON; None for no body."""
    read_timeout: float = 30.0
    """Seconds in which the next bytes must arrive."""
    is_stream: bool = False
    """The reply has no body yet, unless its status is not 200: `Read` returns its pieces."""


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of the stream; gets bytes, empty at its end, or a Failure."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait so many seconds; gets None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Give a signal to the caller; gets None."""

    signal: Signal


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """Names are found in any case."""
    body: bytes

    @property
    def is_json(self) -> bool:
        """True iff the body is JSON, or empty."""
        try:
            json.loads(self.body or b"{}")
        except ValueError:
            return False
        return True

    def json(self) -> Any:
        """Return the body as JSON; an empty object if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


@dataclass(frozen=True, slots=True)
class Failure:
    """The connection failed: the request may or may not have been received."""

    error: Exception


Command = Request | Read | Sleep | Emit
Result = Reply | Failure | bytes | None
