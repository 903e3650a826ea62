"""The errors of the shop, as HTTP errors."""

from __future__ import annotations

from fastapi import HTTPException


class NoSuchOrder(HTTPException):
    """The order does not exist."""

    def __init__(self, order_id: int) -> None:
        super().__init__(404, f"there is no order {order_id}")


class AlreadySettled(HTTPException):
    """The order is paid or cancelled."""

    def __init__(self, order_id: int, state: str) -> None:
        super().__init__(409, f"order {order_id} is {state}: it can no longer be paid")
