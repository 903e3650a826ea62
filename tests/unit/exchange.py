"""One request to an ASGI application, with the messages in the test's hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """Values of one name joined by a comma."""
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class Exchange:
    """`receive()` ends with the answer, or with the client, which may go, as uvicorn's does.

    And as granian's, it takes a turn for the body, and says that the client has left to whoever
    calls it beside such a call, or after that was cancelled.
    """

    def __init__(
        self,
        path: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        method: str = "GET",
        body: Iterable[bytes] = (b"",),
        spec_version: str = "2.3",
        **scope: Any,
    ) -> None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            **scope,
        }
        chunks = list(body)
        self.body = [
            {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
            for number, chunk in enumerate(chunks, 1)
        ]
        self.is_raising = spec_version >= "2.4"
        self._is_gone = False
        self._is_reading = False
        self._happened = asyncio.Event()
        self.sent: list[Message] = []
        self.task: asyncio.Task[None] | None = None

    def begin(self, app: ASGIApp) -> Self:
        """Have `app` answer in a task of its own."""
        self.task = asyncio.ensure_future(app(self.scope, self.receive, self.send))
        return self

    def leave(self) -> None:
        """Close the connection."""
        self._is_gone = True
        self._happened.set()

    async def end(self) -> None:
        """Wait until the application has returned, whatever it has sent."""
        assert self.task is not None
        await self.task

    async def reply(self) -> Reply:
        """Wait until the application has returned; return its answer."""
        await self.end()
        return self.answer()

    def answer(self) -> Reply:
        """Return the answer that has been sent."""
        start, *bodies = self.sent
        assert self.is_complete, self.sent
        headers: dict[str, str] = {}
        for raw_name, raw_value in start["headers"]:
            name, value = raw_name.decode(), raw_value.decode()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Reply(start["status"], headers, b"".join(item.get("body", b"") for item in bodies))

    @property
    def is_complete(self) -> bool:
        """True iff the last byte of the answer was sent."""
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)

    async def receive(self) -> Message:
        """What the server hands to the application."""
        if self.body and not self._is_gone and not self._is_reading:
            self._is_reading = True
            await asyncio.sleep(0)
            self._is_reading = False
            return self.body.pop(0)
        while not self._is_gone and not self.is_complete and not self._is_reading:
            self._happened.clear()
            await self._happened.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """What the application hands to the server."""
        if self._is_gone:
            if self.is_raising:
                raise OSError("the client has left")
            return
        expected = "http.response.body" if self.sent else "http.response.start"
        was_complete = self.is_complete
        assert message["type"] == expected and not was_complete, message
        self.sent.append(message)
        if self.is_complete:
            self._happened.set()


async def ask(app: ASGIApp, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    """Send a GET and wait for the answer."""
    return await Exchange(path, headers or {}).begin(app).reply()
