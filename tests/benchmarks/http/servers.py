"""The servers that are measured, and what they were on the machine where targets were set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A server, by the name that `serve` knows."""

    name: str
    title: str
    watch: str = "/purgatory/watch"
    """Where a key is waited for."""
    uses_protocol: bool = False
    """Served with ParkingProtocol, not uvicorn's httptools. For applications, not the service."""


BARE: Final = ServerKind("bare", "bare asyncio protocol on uvloop (the floor)")
SERVICE: Final = ServerKind("service", "`make run`, all defaults: access log, SQLite store")
PROTOCOL: Final = ServerKind("protocol", "purgatory, ParkingProtocol", uses_protocol=True)
ROUTER: Final = ServerKind("router", "purgatory, any ASGI server")
RAW: Final = ServerKind("raw", "raw ASGI, parked in receive() (the floor on any server)")
OWN_PROTOCOL: Final = ServerKind(
    "own-protocol", "an endpoint of one's own, ParkingProtocol", "/own", uses_protocol=True
)
OWN: Final = ServerKind("own", "an endpoint of one's own, any ASGI server", "/own")
HANDLER: Final = ServerKind("handler", "the FastAPI handler people write")
UVICORN_HANDLER: Final = ServerKind(
    "uvicorn-handler", "the same as `uvicorn` starts it: all defaults, access log"
)

SERVERS: Final = (
    BARE,
    SERVICE,
    PROTOCOL,
    ROUTER,
    RAW,
    OWN_PROTOCOL,
    OWN,
    HANDLER,
    UVICORN_HANDLER,
)
