"""An order, as the table has it."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class OrderState(StrEnum):
    """Exactly one of the last two follows on the first."""

    OPEN = "open"
    PAID = "paid"
    CANCELLED = "cancelled"


class Base(DeclarativeBase):
    """What the shop keeps."""


class Order(Base):
    """A row. Whoever changes it raises `version`, which is the order's ETag."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    pay_by_ms: Mapped[int]
    """UTC milliseconds since 1970: a deadline that a restart does not move."""
    state: Mapped[str] = mapped_column(default=OrderState.OPEN.value, index=True)
    version: Mapped[int] = mapped_column(default=1)


def watch_key(order_id: int) -> str:
    """Return the key that fires when an order changes."""
    return f"order:{order_id}"
