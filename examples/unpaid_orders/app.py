"""The shop as a service: `uvicorn --factory examples.unpaid_orders.app:create_app`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from examples.unpaid_orders.endpoints import router
from examples.unpaid_orders.settings import ShopSettings
from examples.unpaid_orders.shop import Shop
from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, LongPollMiddleware, install
from purgatory.jobs.sql import SqlJobStore


def create_app(settings: ShopSettings | None = None) -> FastAPI:
    """Return a shop. Run one worker: what fires is known in its process only."""
    settings = ShopSettings(database=Path("orders.sqlite3")) if settings is None else settings
    purgatory = Purgatory("shop", jobs=SqlJobStore(f"sqlite:///{settings.database}"))
    shop = Shop(purgatory, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Before the router's lifespan, which opens the purgatory.
        await shop.open()
        yield
        await shop.close()

    app = FastAPI(title="Unpaid orders", lifespan=lifespan)
    app.state.shop = shop
    app.include_router(router)
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)
    # The demonstration counts what is parked; firing and dropping keys is for the shop alone.
    install(app, purgatory, endpoints={"statistics"}, authorize=ALLOW_ANYONE, problem_details="app")
    return app
