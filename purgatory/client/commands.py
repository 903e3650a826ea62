"""The commands of flows to the client that runs them, and their results."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.client.requests import Reply, Request
from purgatory.client.values import Signal


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
class Failure:
    """The connection failed: the request may or may not have been received."""

    error: Exception


Command = Request | Read | Sleep | Emit
Result = Reply | Failure | bytes | None
