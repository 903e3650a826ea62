"""Dependencies in front of a raw endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.routing.request_internals import cached_body, is_body_read


def behind_dependencies(
    raw: ASGIApp, path: str, dependencies: Sequence[Depends], overrides_provider: Any
) -> ASGIApp:
    """Return `raw` behind the dependencies of an application or of an included router.

    FastAPI runs them, as in front of any endpoint, and responds to what they raise.
    """

    async def delegate(request: Request) -> Response:
        return _Delegated(raw, request)

    route = APIRoute(
        path,
        delegate,
        response_model=None,
        dependencies=dependencies,
        dependency_overrides_provider=overrides_provider,
    )
    return route.app


class _Delegated(Response):
    """The response that `raw` sends."""

    def __init__(self, raw: ASGIApp, request: Request) -> None:
        super().__init__()
        self._raw = raw
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._raw(scope, self._receive_again(receive), send)

    def _receive_again(self, receive: Receive) -> Receive:
        """Return `receive`, preceded by the body if a dependency has read it."""
        if not is_body_read(self._request):
            return receive
        body = cached_body(self._request) or b""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return receive_again
