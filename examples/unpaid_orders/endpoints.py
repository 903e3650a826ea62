"""The endpoints of the shop."""

# No postponed annotations here: FastAPI reads those of the endpoints.
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.ext.asyncio import AsyncSession

from examples.unpaid_orders.order import OrderState, watch_key
from examples.unpaid_orders.schemas import ConnectionsResponse, OrderBody, OrderId, OrderResponse
from examples.unpaid_orders.shop import Shop
from purgatory.fastapi import LongPollKey, ParkDep

PAGE = Path(__file__).with_name("page.html")

router = APIRouter()


async def get_shop(request: Request) -> Shop:
    """Return the shop of this application."""
    shop: Shop = request.app.state.shop
    return shop


ShopDep = Annotated[Shop, Depends(get_shop)]


async def get_session(shop: ShopDep) -> AsyncIterator[AsyncSession]:
    """Yield a session while the endpoint runs, as in most tutorials."""
    async with shop.database.session() as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(get_session)]


@router.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Return the buyer's page."""
    return PAGE.read_text(encoding="utf-8")


@router.post("/orders", status_code=201)
async def place(body: OrderBody, shop: ShopDep, response: Response) -> OrderResponse:
    """Place an order. It is cancelled unless it is paid in time."""
    order = OrderResponse.of(await shop.place(body.item))
    response.headers["Location"] = f"/orders/{order.id}"
    response.headers["ETag"] = order.etag
    return order


@router.get("/orders/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
async def show(
    order_id: OrderId, shop: ShopDep, session: SessionDep, response: Response
) -> OrderResponse:
    """Return an order; with If-None-Match and `Prefer: wait=25`, when it has changed.

    This is an ordinary endpoint. While its request is parked, it is not running and has no session.
    The middleware calls it again when the order's key fires.
    """
    order = OrderResponse.of(await shop.find(session, order_id))
    response.headers["ETag"] = order.etag
    response.headers["Cache-Control"] = "no-cache"
    return order


@router.get("/orders/{order_id}/receipt")
async def receipt(
    order_id: OrderId,
    shop: ShopDep,
    park: ParkDep,
    wait: Annotated[float, Query(ge=0, le=55)] = 25.0,
) -> OrderResponse:
    """Return an order when it is settled, or its state when the wait ends.

    This does the same by hand, for endpoints that park inside. It has no `SessionDep`, which would
    hold a connection for the whole wait: take the cursor, read the order, park without a session,
    and read the order again.
    """
    since = park.cursor(watch_key(order_id))
    order = await _read_order(shop, order_id)
    if order.state is OrderState.OPEN:
        await park(watch_key(order_id), timeout=wait, cursor=since)
        order = await _read_order(shop, order_id)
    return order


async def _read_order(shop: Shop, order_id: int) -> OrderResponse:
    async with shop.database.session() as session:
        return OrderResponse.of(await shop.find(session, order_id))


@router.post("/orders/{order_id}/payment")
async def pay(order_id: OrderId, shop: ShopDep, response: Response) -> OrderResponse:
    """Pay an order; 409 if it is already settled."""
    order = OrderResponse.of(await shop.pay(order_id))
    response.headers["ETag"] = order.etag
    return order


@router.get("/connections")
async def connections(shop: ShopDep) -> ConnectionsResponse:
    """Return the number of database connections in use."""
    return ConnectionsResponse(in_use=shop.database.in_use, size=shop.database.pool_size)
