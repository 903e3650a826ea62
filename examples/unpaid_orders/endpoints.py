"""The shop over HTTP."""

# No postponed annotations here: FastAPI reads those of the endpoints.
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.ext.asyncio import AsyncSession

from examples.unpaid_orders.order import OrderState, watch_key
from examples.unpaid_orders.schemas import ConnectionsAnswer, OrderAnswer, OrderBody, OrderId
from examples.unpaid_orders.shop import Shop
from purgatory.fastapi import ParkDep, watch

PAGE = Path(__file__).with_name("page.html")

router = APIRouter()


async def get_shop(request: Request) -> Shop:
    """Return the shop of this application."""
    shop: Shop = request.app.state.shop
    return shop


ShopDep = Annotated[Shop, Depends(get_shop)]


async def get_session(shop: ShopDep) -> AsyncIterator[AsyncSession]:
    """Lend a session for as long as the endpoint runs: the way that every tutorial has it."""
    async with shop.database.session() as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(get_session)]


@router.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Return the buyer's page."""
    return PAGE.read_text(encoding="utf-8")


@router.post("/orders", status_code=201)
async def place(body: OrderBody, shop: ShopDep, response: Response) -> OrderAnswer:
    """Order something. It is cancelled unless it is paid in time."""
    answer = OrderAnswer.of(await shop.place(body.item))
    response.headers["Location"] = f"/orders/{answer.id}"
    response.headers["ETag"] = answer.etag
    return answer


@router.get("/orders/{order_id}", dependencies=[Depends(watch("order:{order_id}"))])
async def show(
    order_id: OrderId, shop: ShopDep, session: SessionDep, response: Response
) -> OrderAnswer:
    """Return an order. With If-None-Match and `Prefer: wait=25`: once it has changed.

    An ordinary endpoint. While its request is parked it is not running, and has no session: the
    middleware calls it again when the order's key fires.
    """
    answer = OrderAnswer.of(await shop.find(session, order_id))
    response.headers["ETag"] = answer.etag
    response.headers["Cache-Control"] = "no-cache"
    return answer


@router.get("/orders/{order_id}/receipt")
async def receipt(
    order_id: OrderId,
    shop: ShopDep,
    park: ParkDep,
    wait: Annotated[float, Query(ge=0, le=55)] = 25.0,
) -> OrderAnswer:
    """Return an order once it is settled, or as it is when the wait is over.

    The same by hand, for endpoints that have to park in their midst. No `SessionDep` here: that
    would hold a connection for the whole wait. Note the cursor, look, park with nothing in hand,
    and look again.
    """
    signals = shop.purgatory.signals
    cursor = signals.cursor(signals.head())
    answer = await _look(shop, order_id)
    if answer.state is OrderState.OPEN:
        await park(watch_key(order_id), timeout=wait, cursor=cursor)
        answer = await _look(shop, order_id)
    return answer


async def _look(shop: Shop, order_id: int) -> OrderAnswer:
    async with shop.database.session() as session:
        return OrderAnswer.of(await shop.find(session, order_id))


@router.post("/orders/{order_id}/payment")
async def pay(order_id: OrderId, shop: ShopDep, response: Response) -> OrderAnswer:
    """Pay an order: 409 where it is settled already."""
    answer = OrderAnswer.of(await shop.pay(order_id))
    response.headers["ETag"] = answer.etag
    return answer


@router.get("/connections")
async def connections(shop: ShopDep) -> ConnectionsAnswer:
    """Say how many connections to the database are in use."""
    return ConnectionsAnswer(in_use=shop.database.in_use, size=shop.database.pool_size)
