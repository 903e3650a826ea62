"""The shop: placing, paying and cancelling orders."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from examples.unpaid_orders.database import Database
from examples.unpaid_orders.errors import AlreadySettled, NoSuchOrder
from examples.unpaid_orders.order import Order, OrderState, watch_key
from examples.unpaid_orders.payment_deadline import PaymentDeadline
from examples.unpaid_orders.settings import ShopSettings
from purgatory import Purgatory

logger = logging.getLogger("examples.unpaid_orders")

MS_PER_MINUTE = 60_000


class Shop:
    """Accepts orders, settles each exactly once, and then fires its key.

    The table decides: payment and deadline change an order in one statement, only if it is open.
    The key fires after the commit, so waiters read the new state.
    """

    def __init__(self, purgatory: Purgatory, settings: ShopSettings) -> None:
        """Keep orders in their own database."""
        self.purgatory = purgatory
        self.database = Database(settings)
        self._payment_ms = round(settings.payment_minutes * MS_PER_MINUTE)
        # The event loop holds tasks only weakly.
        self._cancelling: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the database, and wait again for the payment of every open order."""
        await self.database.create_tables()
        # Before reading: orders settled from now on count.
        position = self.purgatory.signals.head()
        async with self.database.session() as session:
            query = select(Order).where(Order.state == OrderState.OPEN)
            for order in await session.scalars(query):
                self._await_payment(order, position)

    async def close(self) -> None:
        """Finish the cancellations in progress, and close the database."""
        await asyncio.gather(*self._cancelling)
        await self.database.close()

    async def place(self, item: str) -> Order:
        """Store an order and start waiting for its payment."""
        position = self.purgatory.signals.head()
        pay_by_ms = self.purgatory.clock.wall_ms() + self._payment_ms
        order = Order(item=item, pay_by_ms=pay_by_ms)
        async with self.database.session() as session:
            session.add(order)
            await session.flush()
            # Before the commit, so that every stored order has a deadline.
            deadline = self._await_payment(order, position)
            try:
                await session.commit()
            except BaseException:
                deadline.cancel()
                raise
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

    def _await_payment(self, order: Order, position: int) -> PaymentDeadline:
        left_ms = max(0, order.pay_by_ms - self.purgatory.clock.wall_ms())
        deadline = PaymentDeadline(left_ms, order.id, self.purgatory, position, self._on_overdue)
        self.purgatory.park_operation(deadline, [watch_key(order.id)])
        return deadline

    def _on_overdue(self, order_id: int) -> None:
        # Called by the timer, which cannot await.
        task = asyncio.get_running_loop().create_task(self._cancel(order_id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, order_id: int) -> None:
        try:
            # If a payment came first, this changes nothing.
            await self._settle(order_id, OrderState.CANCELLED)
        except Exception:
            # It stays open until the next start, which cancels overdue orders.
            logger.exception("order %d was not cancelled", order_id)

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
            await session.commit()
            order = await self.find(session, order_id)
        if has_changed:
            await self.purgatory.fire(watch_key(order_id), {"state": state})
        return order, has_changed
