"""The table of orders."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class OrderState(StrEnum):
    """The state of an order: open, and then either paid or cancelled."""

    OPEN = "open"
    PAID = "paid"
    CANCELLED = "cancelled"


class Base(DeclarativeBase):
    """The base of the shop's tables."""


class Order(Base):
    """An order. Each change increments `version`, which is the order's ETag."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    pay_by_ms: Mapped[int]
    """The deadline in UTC milliseconds since 1970; a restart does not change it."""
    state: Mapped[str] = mapped_column(default=OrderState.OPEN.value, index=True)
    version: Mapped[int] = mapped_column(default=1)


def watch_key(order_id: int) -> str:
    """Return the key that fires when an order changes."""
    return f"order:{order_id}"
