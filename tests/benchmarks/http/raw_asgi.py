"""The floor on any ASGI server: an endpoint that parks in `receive()`, without a framework."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

from tests.benchmarks.http.probe import probe

_JSON = (b"content-type", b"application/json")


class RawAsgi:
    """An application; a park is an entry in a dict, a handle of the loop, and the task."""

    def __init__(self) -> None:
        self.waiting: dict[str, dict[Any, asyncio.TimerHandle]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _, _, key = scope["path"].rpartition("/")
        if scope["path"] == "/bench":
            await _respond(send, 200, json.dumps(probe(sum(map(len, self.waiting.values())))))
        elif scope["method"] == "GET":
            await self._watch(
                key, float(parse_qs(scope["query_string"])[b"wait"][0]), receive, send
            )
        else:
            await _respond(send, 201, f'{{"completed":{await self._fire(key)}}}')

    async def _watch(self, key: str, wait: float, receive: Any, send: Any) -> None:
        # The body, which is empty.
        await receive()
        waiting = self.waiting.setdefault(key, {})
        loop = asyncio.get_running_loop()
        waiting[send] = loop.call_later(
            wait, lambda: loop.create_task(self._end(key, send, "expired"))
        )
        # It returns once the response is complete, or the client has left.
        await receive()
        handle = waiting.pop(send, None)
        if handle is not None:
            handle.cancel()

    async def _fire(self, key: str) -> int:
        waiting = list(self.waiting.get(key, ()))
        for send in waiting:
            await self._end(key, send, "fired")
        return len(waiting)

    async def _end(self, key: str, send: Any, reason: str) -> None:
        handle = self.waiting[key].pop(send, None)
        if handle is not None:
            handle.cancel()
            await _respond(send, 200, f'{{"reason":"{reason}"}}')


async def _respond(send: Any, status: int, body: str) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length]})
    await send({"type": "http.response.body", "body": body.encode()})
