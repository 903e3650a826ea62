"""What the API's documentation says of endpoints of an application that are long polls."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, WebSocket

from purgatory import Purgatory
from purgatory.fastapi import LongPollKey, LongPollMiddleware, install

ORDER_KEY = Depends(LongPollKey("order:{order}"))


async def shown(key: Annotated[str, ORDER_KEY]) -> str:
    return key


def documented(*, is_parking: bool = True) -> dict[str, Any]:
    """Return the operations of an application, with the middleware or without."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    if is_parking:
        app.add_middleware(LongPollMiddleware, purgatory=purgatory)
    router = APIRouter(prefix="/shop")

    @router.get("/orders/{order:path}", dependencies=[ORDER_KEY])
    async def show(order: str) -> None: ...

    @router.post("/orders/{order:path}", dependencies=[ORDER_KEY])
    async def change(order: str) -> None: ...

    @router.get(
        "/own/{order}",
        responses={304: {"description": "Own."}},
        openapi_extra={"parameters": [{"$ref": "#/components/parameters/Trace"}]},
    )
    async def own(
        order: str, key: Annotated[str, Depends(shown)], prefer: Annotated[str, Header()] = ""
    ) -> None: ...

    @router.get("/hidden/{order}", dependencies=[ORDER_KEY], include_in_schema=False)
    async def hidden(order: str) -> None: ...

    @router.websocket("/orders/{order:path}", dependencies=[ORDER_KEY])
    async def talk(socket: WebSocket) -> None: ...

    @router.get("/plain")
    async def plain() -> None: ...

    app.include_router(router)
    app.openapi()
    paths: dict[str, Any] = app.openapi()["paths"]
    return paths


def headers(operation: dict[str, Any]) -> list[str]:
    parameters = operation.get("parameters", ())
    return [each["name"] for each in parameters if each.get("in") == "header"]


def test_the_headers_and_the_304_are_declared() -> None:
    """Of each GET that names a key, itself or by a dependency; once, and below its own."""
    paths = documented()
    show = paths["/shop/orders/{order}"]["get"]
    assert headers(show) == ["Prefer", "If-None-Match"]
    assert set(show["responses"]["304"]["headers"]) == {"ETag", "Preference-Applied"}
    own = paths["/shop/own/{order}"]["get"]
    assert headers(own) == ["prefer", "If-None-Match"]
    assert own["responses"]["304"] == {"description": "Own."}
    for others in (paths["/shop/orders/{order}"]["post"], paths["/shop/plain"]["get"]):
        assert headers(others) == [] and "304" not in others["responses"]


def test_without_the_middleware_they_have_no_effect() -> None:
    """And so they are not declared."""
    show = documented(is_parking=False)["/shop/orders/{order}"]["get"]
    assert headers(show) == [] and "304" not in show["responses"]
