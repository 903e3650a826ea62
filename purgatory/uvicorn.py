"""The protocol class for uvicorn: parking without an ASGI scope, a task or a frame.

    uvicorn --http purgatory.uvicorn:ParkingProtocol app:app

The responses are those of the application, for a third of the memory per parked request. If this
version of uvicorn lacks private names that the class needs, `ParkingProtocol` is uvicorn's own
protocol, and a warning says so.

This path is stable, because it is used on command lines; the code is in
`purgatory.fastapi.servers`. Importing it raises ImportError if FastAPI, uvicorn or
httptools is not installed.
"""

from __future__ import annotations

import asyncio
import logging

__all__ = ["ParkingProtocol"]

try:
    import httptools as _httptools  # noqa: F401 - imported to say, once, what is missing
    import uvicorn as _uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as exc:
    raise ImportError(
        "purgatory.uvicorn needs uvicorn and httptools: pip install "
        "'fastapi-purgatory[fastapi]' httptools"
    ) from exc

logger = logging.getLogger("purgatory.fastapi")


def choose_protocol() -> type[asyncio.Protocol]:
    """Return the class that parks, or uvicorn's own if this version of it lacks what that needs."""
    try:
        # Not at the top: an ImportError of these is one of the ways in which a version differs.
        from purgatory.fastapi.servers.fallback_protocol import missing_internals
        from purgatory.fastapi.servers.parking_protocol import ParkingProtocol

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
