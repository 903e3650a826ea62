"""The JSON of requests and responses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

from examples.unpaid_orders.order import Order, OrderState

# The largest id in SQLite.
MAX_ID = 2**63 - 1


def _spelled_once(text: str) -> str:
    # The watch key is made from the URL: another spelling would be another key.
    if len(text) > 19 or not text.isascii() or not text.isdigit() or text[0] == "0":
        raise ValueError("give the order's number as in its Location")
    return text


OrderId = Annotated[int, BeforeValidator(_spelled_once), Path(ge=1, le=MAX_ID)]


class OrderBody(BaseModel):
    """The body of a new order."""

    model_config = ConfigDict(extra="forbid")

    item: Annotated[StrictStr, Field(min_length=1, max_length=100)]


class OrderResponse(BaseModel):
    """The public description of an order; each change also changes the version."""

    id: int
    item: str
    state: OrderState
    version: int
    pay_by: datetime

    @classmethod
    def of(cls, order: Order) -> Self:
        """Return the description of `order`."""
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


class ConnectionsResponse(BaseModel):
    """The current use of the connection pool."""

    in_use: int
    size: int
