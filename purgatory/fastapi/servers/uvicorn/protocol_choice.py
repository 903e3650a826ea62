"""The choice of the protocol class that `purgatory.uvicorn` exports.

`ParkingProtocol` needs httptools; with h11, and on any other server, the endpoints park as ASGI. It
also needs names that are private to uvicorn. With a version of uvicorn that lacks one of them,
`ParkingProtocol` is uvicorn's own protocol, and a warning says so.
"""

from __future__ import annotations

import asyncio
import logging

try:
    import httptools as _httptools  # noqa: F401 - imported to say, once, what is missing
    import uvicorn as _uvicorn
except ImportError as exc:
    raise ImportError(
        "purgatory.uvicorn needs uvicorn and httptools: pip install "
        "'fastapi-purgatory[fastapi]' httptools"
    ) from exc

from uvicorn.protocols.http.auto import AutoHTTPProtocol

logger = logging.getLogger("purgatory.fastapi")


def choose_protocol() -> type[asyncio.Protocol]:
    """Return the class that parks, or uvicorn's own if this version of it lacks what that needs."""
    try:
        # Not at the top: an ImportError of these is one of the ways in which a version differs.
        from purgatory.fastapi.servers.uvicorn.fallback_protocol import missing_internals
        from purgatory.fastapi.servers.uvicorn.parking_protocol import ParkingProtocol

        missing = missing_internals()
    except (AttributeError, ImportError, TypeError) as exc:
        missing = [str(exc)]
    if not missing:
        return ParkingProtocol
    logger.warning(
        "uvicorn %s has no %s: its own protocol serves, and a parked request takes more memory",
        _uvicorn.__version__,
        ", ".join(missing),
        extra={"action": "uvicorn-unsupported"},
    )
    return AutoHTTPProtocol


ParkingProtocol = choose_protocol()
