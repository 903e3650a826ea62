"""Requests of an ASGI server."""

from __future__ import annotations

from starlette.types import Scope

from purgatory.fastapi.http.authorization import UNRESTRICTED
from purgatory.fastapi.http.raw_request import RawRequest

IDENTITY = "purgatory.identity"
"""The key of an ASGI scope with the identity of the client, if a dependency has found it."""


class AsgiRequest(RawRequest):
    """A request that reads its ASGI scope on demand."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope, path_value: str) -> None:
        """Hold the request of `scope`, whose path ends with `path_value`."""
        self.query_string = scope["query_string"]
        self.headers = scope["headers"]
        self.path_value = path_value
        self.body = b""
        self.permit = UNRESTRICTED
        self._by_name = None
        self.scope = scope

    @property
    def path(self) -> str:  # type: ignore[override] # read only
        """The decoded path, for `instance` in problem details."""
        path: str = self.scope["path"]
        return path

    @property
    def raw_path(self) -> bytes:  # type: ignore[override] # read only
        """The path as it was sent, if the server provides it."""
        raw_path: bytes | None = self.scope.get("raw_path")
        return raw_path or self.path.encode("utf-8", "surrogatepass")

    @property
    def dependency_identity(self) -> str | None:
        """The identity of the client that a dependency has found."""
        identity: str | None = self.scope.get(IDENTITY)
        return identity

    @property
    def client(self) -> str:  # type: ignore[override] # read only
        """The address of the client; empty if unknown."""
        return (self.scope.get("client") or ("",))[0]
