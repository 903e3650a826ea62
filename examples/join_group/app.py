"""The coordinator as a service: `uvicorn --factory examples.join_group.app:create_app`."""

from __future__ import annotations

from fastapi import FastAPI

from examples.join_group.coordinator import Coordinator
from examples.join_group.endpoints import router
from examples.join_group.problems import add_group_problems
from examples.join_group.schemas import MAX_BODY_BYTES
from examples.join_group.settings import CoordinatorSettings
from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install


def create_app(settings: CoordinatorSettings | None = None) -> FastAPI:
    """Return a coordinator without groups.

    Groups are kept in the memory of the process: run one worker. When it stops, parked members get
    an error that tells them to join again.
    """
    settings = CoordinatorSettings() if settings is None else settings
    purgatory = Purgatory("join-group", limits=Limits(max_parked=settings.max_operations))
    app = FastAPI(title="Group coordinator", max_body_size=MAX_BODY_BYTES)
    app.state.coordinator = Coordinator(purgatory, settings)
    app.include_router(router)
    add_group_problems(app)
    install(app, purgatory, endpoints={"statistics"}, authorize=ALLOW_ANYONE)
    return app
