"""The applications that are served here: for `uvicorn tests.acceptance.application:app`."""

from __future__ import annotations

from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, create_health_router, install


def create_app(
    purgatory: Purgatory, app: FastAPI | None = None, *, allow_separate_workers: bool = False
) -> FastAPI:
    """Return an application with `purgatory` in it, and an endpoint that parks by itself."""
    app = FastAPI() if app is None else app

    @app.get("/orders/{order}/paid")
    async def order_paid(order: str, park: ParkDep, timeout: float = 25.0) -> dict[str, object]:
        """Wait until the order is paid."""
        outcome = await park(f"order:{order}:paid", timeout=timeout)
        return {"status": outcome.status, "value": outcome.value, "cursor": outcome.cursor}

    app.include_router(create_health_router(purgatory))
    install(app, purgatory, allow_separate_workers=allow_separate_workers, authorize=ALLOW_ANYONE)
    return app


app = create_app(Purgatory())
app_of_separate_workers = create_app(Purgatory(), allow_separate_workers=True)
# For the load test, which has twice as many clients.
app_with_room_for_a_crowd = create_app(Purgatory(limits=Limits(max_parked=400)))
