"""What the shop refuses: raised where it is found out, and answered as it is."""

from __future__ import annotations

from fastapi import HTTPException


class NoSuchOrder(HTTPException):
    """There is no order of that number."""

    def __init__(self, order_id: int) -> None:
        super().__init__(404, f"there is no order {order_id}")


class AlreadySettled(HTTPException):
    """The order is paid or cancelled."""

    def __init__(self, order_id: int, state: str) -> None:
        super().__init__(409, f"order {order_id} is {state}: it can no longer be paid")
