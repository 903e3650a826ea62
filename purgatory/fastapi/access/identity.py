"""The identity of a client, as an `authorize` of your own returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Depends, Request

from purgatory.fastapi.http.asgi_request import IDENTITY, AsgiRequest
from purgatory.fastapi.http.authorization import UNRESTRICTED, Permit
from purgatory.fastapi.http.raw_request import RawRequest


def identifying(authorize: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency that calls `authorize` and keeps the string that it returns.

    It raises TypeError for what is neither a string nor None.
    """

    # Async, though it awaits nothing: FastAPI calls others in its threads, all of which may be
    # taken by the waiters of the very key that this request is about to fire.
    async def keep(request: Request, identity: Any = Depends(authorize)) -> None:  # noqa: B008 - FastAPI's own way
        if isinstance(identity, str):
            request.scope[IDENTITY] = identity or None
        elif identity is not None:
            raise TypeError(
                f"authorize returned a {type(identity).__qualname__}, which cannot be the identity "
                "of a client: return a string, such as str(user.id), or None; to refuse, "
                "raise HTTPException(403)"
            )

    return keep


class IdentifiedPermit(Permit):
    """Allows everything: a dependency has decided, and named the client."""

    __slots__ = ("_identity",)

    def __init__(self, identity: str) -> None:
        """Name the client, who alone knows its ids, Idempotency-Keys and dedupe keys."""
        self._identity = identity

    @property
    def identity(self) -> str:
        """The client."""
        return self._identity


def identified(raw: RawRequest) -> Permit:
    """Return the permit of a client that `authorize` has admitted, with its identity if known."""
    identity = raw.dependency_identity if isinstance(raw, AsgiRequest) else None
    return UNRESTRICTED if identity is None else IdentifiedPermit(identity)
