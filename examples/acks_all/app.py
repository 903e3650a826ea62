"""The broker as a FastAPI application."""

from __future__ import annotations

from fastapi import FastAPI

from examples.acks_all.config import BrokerConfig
from examples.acks_all.problems import add_broker_errors
from examples.acks_all.replica_manager import ReplicaManager
from examples.acks_all.router import router
from examples.acks_all.schemas import MAX_BODY_BYTES
from purgatory import Purgatory
from purgatory.fastapi import install


def create_app(
    config: BrokerConfig | None = None, *, purgatory: Purgatory | None = None
) -> FastAPI:
    """Return a broker. It has no authentication: do not expose it beyond this machine."""
    purgatory = Purgatory("acks-all") if purgatory is None else purgatory
    # Swagger UI would be loaded from the internet.
    app = FastAPI(title="acks-all", docs_url=None, redoc_url=None, max_body_size=MAX_BODY_BYTES)
    app.state.replica_manager = ReplicaManager(purgatory, config or BrokerConfig())
    app.include_router(router)
    install(app, purgatory, endpoints=())
    add_broker_errors(app)
    return app
