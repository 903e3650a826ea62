"""An application of long polls: for `uvicorn tests.acceptance.long_poll_application:app`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from purgatory import Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    PurgatoryDep,
    install,
)


class Orders:
    """How often each order has changed."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self.calls = 0

    def tag(self, order_id: str) -> str:
        """Return the ETag of an order."""
        self.calls += 1
        return f'W/"{self._versions.get(order_id, 1)}"'

    def change(self, order_id: str) -> int:
        """Change an order; return its version."""
        version = self._versions[order_id] = self._versions.get(order_id, 1) + 1
        return version


def create_app(purgatory: Purgatory, app: FastAPI | None = None) -> FastAPI:
    """Return an application with long polls in it, under the middleware that `app` has already."""
    app = FastAPI() if app is None else app
    orders = app.state.orders = Orders()
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.api_route(
        "/orders/{order_id}",
        methods=["GET", "HEAD"],
        dependencies=[Depends(LongPollKey("order:{order_id}"))],
    )
    async def show(order_id: str, response: Response) -> dict[str, str]:
        """Name the key with a dependency."""
        response.headers["ETag"] = tag = orders.tag(order_id)
        response.headers["Cache-Control"] = "private"
        return {"order": order_id, "version": tag, "text": "x" * 1000}

    @app.get("/slow/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
    def show_slowly(order_id: str, response: Response) -> str:
        """Answer from a thread."""
        response.headers["ETag"] = tag = orders.tag(order_id)
        return tag

    @app.get("/headers/{order_id}")
    async def show_by_header(order_id: str) -> Response:
        """Name the key in the answer."""
        headers = {"ETag": orders.tag(order_id), "Long-Poll-Key": f"order:{order_id}"}
        return Response("x", headers=headers)

    @app.get("/streams/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
    async def stream(order_id: str) -> Response:
        """Answer with a stream that takes its time."""

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 10
                await asyncio.sleep(0.2)

        return StreamingResponse(chunks(), headers={"ETag": orders.tag(order_id)})

    @app.post("/orders/{order_id}")
    async def change(order_id: str, purgatory: PurgatoryDep) -> dict[str, int]:
        """Change an order, and say so."""
        version = orders.change(order_id)
        fired = await purgatory.fire(f"order:{order_id}")
        return {"version": version, "completed": fired.completed}

    @app.get("/paid/{order_id}")
    async def paid(order_id: str, park: ParkDep) -> str:
        """Park in the endpoint itself."""
        return (await park(f"order:{order_id}", timeout=50.0)).status

    @app.get("/whoami")
    async def whoami(request: Request, agent: Annotated[str, Depends(lambda: "x")]) -> str:
        """Have nothing to do with any of it."""
        return agent

    install(app, purgatory, authorize=ALLOW_ANYONE)
    return app


app = create_app(Purgatory())
