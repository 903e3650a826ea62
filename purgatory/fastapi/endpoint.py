"""Endpoints as raw ASGI, inside FastAPI's routes, so that they stand in its OpenAPI."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryError
from purgatory.fastapi.answer import Answer
from purgatory.fastapi.drive import send_answer
from purgatory.fastapi.problems import Problem, problem_of
from purgatory.fastapi.raw_request import RawRequest, too_large

logger = logging.getLogger("purgatory.fastapi")

Handler = Callable[[RawRequest], Awaitable[Answer]]


class RawEndpoint:
    """One endpoint: reads a bounded body, asks its handler, and sends the answer or a problem.

    FastAPI's own handling of a request takes ten times as long, and these checks are stricter: a
    parameter that is unknown or given twice is refused.
    """

    def __init__(self, handler: Handler, prefix: str, *, tail: str = "", max_body: int = 0) -> None:
        """Answer with `handler`; `tail` names the path parameter that it works on."""
        self._handler = handler
        self._prefix = prefix
        self._tail = tail
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        raw = raw_request(scope, self._tail)
        try:
            if self._max_body:
                raw.body = await read_body(scope, receive, self._max_body)
            answer = await self._handler(raw)
        except Problem as problem:
            answer = problem.answer(self._prefix, raw.path)
        except PurgatoryError as exc:
            answer = problem_of(exc).answer(self._prefix, raw.path)
        await send_answer(send, answer)


class RawRoute(APIRoute):
    """A route whose endpoint's signature is for OpenAPI, and whose requests go to `raw`.

    The endpoint function carries `raw` as an attribute, because FastAPI may make a route again from
    its endpoint when a router is included.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the raw endpoint; what is no such method, to FastAPI's refusal."""
        if scope["method"] in (self.methods or ()):
            await self.endpoint.raw(scope, receive, send)  # type: ignore[attr-defined] # see above
        else:
            await super().handle(scope, receive, send)


def raw_request(scope: Scope, tail: str) -> RawRequest:
    """Return what `scope` says of a request, with one of its path parameters."""
    return RawRequest(
        path=scope["path"],
        raw_path=scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass"),
        query_string=scope["query_string"],
        headers=scope["headers"],
        tail=scope["path_params"][tail] if tail else "",
    )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body; raise Problem beyond `limit` bytes, without reading the rest."""
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > limit):
            raise too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("bad-json", "the client left before the body was complete")
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)
