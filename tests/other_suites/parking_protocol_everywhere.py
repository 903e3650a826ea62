"""A pytest plugin for uvicorn's own suite: `ParkingProtocol` takes the place of its httptools one.

Imported by itself, beside a suite whose own folder may be called `tests`.
"""

from __future__ import annotations

from typing import Any

import uvicorn.protocols.http.httptools_impl as httptools_impl

# Before the change: it extends the protocol whose place it takes.
from purgatory.uvicorn import ParkingProtocol


# The name by which the suite skips what httptools does not do.
class HttpToolsProtocol(ParkingProtocol):  # type: ignore[misc, valid-type] # chosen as it is imported
    """Loads its configuration as uvicorn's protocols do, and has what the suite reads of them."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> None:
        """Take the arguments that uvicorn gives to its own protocols."""
        if not config.loaded:
            config.load()
        super().__init__(config, server_state, app_state, _loop)
        self.loop = self._server.loop

    def connection_made(self, transport: Any) -> None:
        """Give the suite's transport what transports of asyncio have."""
        self.transport = transport
        if not hasattr(transport, "set_write_buffer_limits"):
            _complete(type(transport), type(self.loop))
        transport.set_protocol(self)
        super().connection_made(transport)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of uvicorn's protocol, which serves what has no fast route."""
        if self._fallback is None:
            self._make_fallback()
        return getattr(self._fallback, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the one attribute of uvicorn's protocol that the suite sets there."""
        owner = self._make_fallback() if name == "ws_protocol_class" else self
        object.__setattr__(owner, name, value)


def pytest_configure() -> None:
    """Change the name, before the suite imports it."""
    httptools_impl.HttpToolsProtocol = HttpToolsProtocol  # type: ignore[misc] # meanwhile


def pytest_report_header() -> str:
    """Say so at the top."""
    return "ParkingProtocol in place of HttpToolsProtocol"


def _complete(transport: Any, loop: Any) -> None:
    transport.set_write_buffer_limits = lambda self, high: None
    transport.get_write_buffer_size = lambda self: 0
    transport.set_protocol = lambda self, protocol: setattr(self, "protocol", protocol)
    transport.get_protocol = lambda self: self.protocol
    loop.time = lambda self: 0.0
    loop.call_at = lambda self, when, callback, *arguments: self.call_later(
        when, callback, *arguments
    )
