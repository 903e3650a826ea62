"""What a connection keeps of a request that has not arrived completely."""

from __future__ import annotations

from typing import Final

from purgatory.fastapi.servers.uvicorn.request_reader import DirectRequest, Unread, is_inside_head

# Of a body that is not wanted, so many bytes are read and dropped: a connection that is closed
# with unread data is reset, and the client may lose the response (RFC 9112, 9.6).
MAX_DROPPED: Final = 16 * 1024 * 1024


class PartialHead:
    """The beginning of a head."""

    __slots__ = ("_data", "_is_route_known")

    request: DirectRequest | None = None

    def __init__(self, data: bytes, reason: Unread) -> None:
        """Keep `data`, which is incomplete for `reason`."""
        self._data = bytearray(data)
        self._is_route_known = reason is Unread.IN_HEAD

    @property
    def held(self) -> int:
        """The number of bytes in memory."""
        return len(self._data)

    def append(self, data: bytes) -> bytes | None:
        """Return all bytes if they are to be read again; None if more have to come first."""
        # The search goes on where it ended: a head may come in very many pieces.
        scanned = len(self._data)
        self._data += data
        if self._is_route_known and is_inside_head(self._data, scanned):
            return None
        return bytes(self._data)


class PartialBody:
    """An admitted request, and the beginning of its body."""

    __slots__ = ("_data", "request")

    def __init__(self, data: bytes, request: DirectRequest) -> None:
        """Keep `data`, which begins with the head of `request`."""
        self._data = bytearray(data)
        self.request = request

    @property
    def held(self) -> int:
        """The number of bytes in memory."""
        return len(self._data)

    def append(self, data: bytes) -> bytes | None:
        """Return all bytes once the body is complete; None before."""
        self._data += data
        return bytes(self._data) if len(self._data) >= self.request.length else None


class DroppedBody:
    """The rest of a body that has its response already."""

    __slots__ = ("_left",)

    request: DirectRequest | None = None
    held = 0

    def __init__(self, left: int) -> None:
        """Drop the next `left` bytes."""
        self._left = left

    def append(self, data: bytes) -> bytes | None:
        """Return what follows the body; None before its end."""
        left = self._left
        self._left -= len(data)
        return data[left:] if self._left <= 0 else None


class DroppedRest(DroppedBody):
    """All that still comes before the client closes; beyond a bound, the server closes."""

    __slots__ = ()


Receiving = PartialHead | PartialBody | DroppedBody
