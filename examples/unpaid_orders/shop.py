"""The shop: placing, paying and cancelling orders."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from examples.unpaid_orders.database import Database
from examples.unpaid_orders.errors import AlreadySettled, NoSuchOrder
from examples.unpaid_orders.order import Order, OrderState, watch_key
from examples.unpaid_orders.settings import ShopSettings
from purgatory import Purgatory
from purgatory.jobs import JobContext
from purgatory.jobs.sql import migrate

CANCEL = "cancel-order"
SECONDS_PER_MINUTE = 60


class Shop:
    """Accepts orders, and settles each exactly once.

    The table decides: payment and deadline change an order in one statement, only if it is open.
    The job that cancels an order, and the fire that tells its waiters, are in the transactions that
    place and settle it: neither can be without the other, whatever dies in between.
    """

    def __init__(self, purgatory: Purgatory, settings: ShopSettings) -> None:
        """Keep orders, and the jobs of `purgatory`, in one database."""
        self.purgatory = purgatory
        self.database = Database(settings)
        self._payment_s = settings.payment_minutes * SECONDS_PER_MINUTE
        purgatory.handler(CANCEL)(self.cancel)

    async def open(self) -> None:
        """Create the tables: before the purgatory opens, which needs its own."""
        await migrate(self.database.url)
        await self.database.create_tables()

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()

    async def place(self, item: str) -> Order:
        """Store an order, and the job that cancels it unless it is settled before."""
        pay_by_ms = self.purgatory.clock.wall_ms() + round(self._payment_s * 1000)
        order = Order(item=item, pay_by_ms=pay_by_ms)
        async with self.database.session() as session:
            session.add(order)
            await session.flush()
            await self.purgatory.defer(
                CANCEL,
                order.id,
                delay=self._payment_s,
                keys=[watch_key(order.id)],
                on_fire="cancel",
                session=session,
            )
            await session.commit()
        return order

    async def find(self, session: AsyncSession, order_id: int) -> Order:
        """Return an order; raise NoSuchOrder."""
        order = await session.get(Order, order_id)
        if order is None:
            raise NoSuchOrder(order_id)
        return order

    async def pay(self, order_id: int) -> Order:
        """Settle an order as paid; raise NoSuchOrder, or AlreadySettled."""
        order, has_changed = await self._settle(order_id, OrderState.PAID)
        if not has_changed:
            raise AlreadySettled(order_id, order.state)
        return order

    async def cancel(self, job: JobContext, order_id: int) -> None:
        """Settle an overdue order as cancelled; if a payment came first, this changes nothing."""
        await self._settle(order_id, OrderState.CANCELLED)

    async def _settle(self, order_id: int, state: OrderState) -> tuple[Order, bool]:
        """Set the final state of an open order; return it, and True iff this call changed it."""
        change = (
            update(Order)
            .where(Order.id == order_id, Order.state == OrderState.OPEN)
            .values(state=state, version=Order.version + 1)
            .returning(Order.id)
        )
        async with self.database.session() as session:
            has_changed = (await session.execute(change)).first() is not None
            if has_changed:
                await self.purgatory.fire(watch_key(order_id), {"state": state}, session=session)
            await session.commit()
            order = await self.find(session, order_id)
        return order, has_changed
