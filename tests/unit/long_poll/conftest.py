"""The order, behind LongPollMiddleware, in virtual time."""

import pytest
from starlette.middleware import Middleware

from purgatory import Purgatory
from purgatory.fastapi import LongPollMiddleware
from tests.unit.long_poll.order import Bench, Order, application
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


@pytest.fixture
def order() -> Order:
    """The order that everybody asks for."""
    return Order()


@pytest.fixture
def bench(purgatory: Purgatory, order: Order) -> Bench:
    """The order, behind the middleware."""
    app = application(order.show, Middleware(LongPollMiddleware, purgatory=purgatory))
    return Bench(app, purgatory, order)
