"""The order, behind LongPollMiddleware, in virtual time."""

import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from purgatory import Purgatory
from purgatory.fastapi import LongPollMiddleware
from purgatory.testing import AutojumpEventLoop
from tests.unit.long_poll.order import Order, application


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run in virtual time."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
def order() -> Order:
    """The order that everybody asks for."""
    return Order()


@pytest.fixture
def app(purgatory: Purgatory, order: Order) -> ASGIApp:
    """The order, behind the middleware."""
    return application(order.show, Middleware(LongPollMiddleware, purgatory=purgatory))
