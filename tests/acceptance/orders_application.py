"""An application with endpoints of its own that park."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from fastapi import BackgroundTasks, Depends, Request, Response
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, StreamingResponse

from purgatory import DelayedOperation, Purgatory
from purgatory.fastapi import DelayedResponse
from purgatory.fastapi.http.asgi import Respond
from tests.acceptance.application import create_app

Form = Literal["plain", "stream", "background", "empty", "closing", "unsafe"]


class Order(DelayedOperation):
    """Answers with its outcome, in one of several forms."""

    def __init__(self, respond: Respond, form: Form, delay_ms: int, done: list[str]) -> None:
        super().__init__(delay_ms)
        self._respond = respond
        self._form = form
        self._done = done
        self._tries = 0

    def try_complete(self) -> bool:
        # Once before its key is watched and once behind that; the third time is a fire.
        self._tries += 1
        return self._tries > 2 and self.force_complete()

    def on_complete(self) -> None:
        self._respond(self._answer())
        # What comes second is not an answer.
        self._respond(PlainTextResponse("again"))

    def on_cancellation(self) -> None:
        self._done.append(f"ended {self.status}")
        self._respond(PlainTextResponse(self.status, 503))

    def _answer(self) -> Response:
        text = str(self.status)
        if self._form == "stream":
            return StreamingResponse(_pieces(text), 202, media_type="text/plain")
        if self._form == "background":
            task = BackgroundTask(self._done.append, "background")
            return PlainTextResponse(text, background=task)
        if self._form == "empty":
            return Response(status_code=204)
        if self._form == "closing":
            return PlainTextResponse(text, headers={"connection": "close"})
        if self._form == "unsafe":
            return PlainTextResponse(text, headers={"x-a": "1\r\nx-b: 2"})
        return PlainTextResponse(text, headers={"x-form": "plain"})


async def _pieces(text: str) -> AsyncIterator[str]:
    for character in text:
        await asyncio.sleep(0)
        yield character


class Orders:
    """An application with endpoints that park, and what happened in it."""

    def __init__(self) -> None:
        self.purgatory = Purgatory()
        self.done: list[str] = []
        self.app = create_app(self.purgatory)
        self.app.add_api_route("/order/{key}", self.order, methods=["GET", "POST"])
        self.app.add_api_route("/order-and-more/{key}", self.order_and_more)
        self.app.add_api_route("/held/{key}", self.held, dependencies=[Depends(self.session)])
        self.app.add_api_route("/plain", self.plain)

    async def session(self) -> AsyncIterator[None]:
        """Something that is held as long as the endpoint needs it."""
        self.done.append("opened")
        yield
        self.done.append("closed")

    async def order(
        self, request: Request, key: str, form: Form = "plain", wait: float = 50
    ) -> Response:
        """Wait for a key, once the body is read."""
        await request.body()
        return self.parked(key, form, wait)

    async def order_and_more(self, key: str, background: BackgroundTasks) -> Response:
        """The same, with something to do behind it."""
        background.add_task(self.done.append, "behind")
        return self.parked(key, "plain", 50)

    async def held(self, key: str) -> Response:
        """Wait for a key, behind a dependency."""
        return self.parked(key, "plain", 50)

    async def plain(self) -> str:
        """Answer at once."""
        return "at once"

    def parked(self, key: str, form: Form, wait: float) -> DelayedResponse:
        """Return what parks."""

        def park(respond: Respond) -> DelayedOperation:
            order = Order(respond, form, round(wait * 1000), self.done)
            self.purgatory.park_operation(order, [key])
            return order

        return DelayedResponse(park)


app = Orders().app
