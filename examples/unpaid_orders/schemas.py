"""The JSON of requests and answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

from examples.unpaid_orders.order import Order, OrderState

# That of SQLite.
MAX_ID = 2**63 - 1


def _spelled_once(text: str) -> str:
    # The key that a page waits for is made of the address: another spelling would be another key.
    if len(text) > 19 or not text.isascii() or not text.isdigit() or text[0] == "0":
        raise ValueError("give the order's number as its Location has it")
    return text


OrderId = Annotated[int, BeforeValidator(_spelled_once), Path(ge=1, le=MAX_ID)]


class OrderBody(BaseModel):
    """What a buyer sends."""

    model_config = ConfigDict(extra="forbid")

    item: Annotated[StrictStr, Field(min_length=1, max_length=100)]


class OrderAnswer(BaseModel):
    """An order as its buyer sees it. Nothing in it changes unless its version does."""

    id: int
    item: str
    state: OrderState
    version: int
    pay_by: datetime

    @classmethod
    def of(cls, order: Order) -> Self:
        """Return what to tell of `order`."""
        return cls(
            id=order.id,
            item=order.item,
            state=OrderState(order.state),
            version=order.version,
            pay_by=datetime.fromtimestamp(order.pay_by_ms / 1000, UTC),
        )

    @property
    def etag(self) -> str:
        """The order's ETag."""
        return f'"{self.version}"'


class ConnectionsAnswer(BaseModel):
    """The pool of connections at this moment."""

    in_use: int
    size: int
