"""The servers that are measured, and what they were on the machine where targets were set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A server, by the name that `serve` knows."""

    name: str
    title: str


BARE: Final = ServerKind("bare", "bare asyncio protocol on uvloop (the floor)")
PROTOCOL: Final = ServerKind("protocol", "purgatory, ParkingProtocol")
ROUTER: Final = ServerKind("router", "purgatory, any ASGI server")
HANDLER: Final = ServerKind("handler", "the FastAPI handler people write")

SERVERS: Final = (BARE, PROTOCOL, ROUTER, HANDLER)
