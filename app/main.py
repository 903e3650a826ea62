"""The application: where the edges meet."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from app.docs import add_docs
from app.journal import create_journal, journal_lifespan
from app.settings import Settings
from purgatory import Purgatory
from purgatory.fastapi import create_health_router, install

DESCRIPTION = """
Park a request until something happens; do it with `GET /purgatory/watch/{key}`, and make it happen
with `POST /purgatory/keys/{key}`.

Every refusal is problem details (RFC 9457), and its `type` is an address that says what to do.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service. For an ASGI server: `uvicorn --factory app.main:create_app`."""
    settings = Settings() if settings is None else settings
    journal = create_journal(settings)
    app = FastAPI(
        title="Purgatory",
        version=version("fastapi-purgatory"),
        description=DESCRIPTION,
        lifespan=journal_lifespan(journal),
        docs_url=None,
        redoc_url=None,
        openapi_tags=[
            {"name": "purgatory", "description": "Wait for keys, and fire them."},
            {"name": "health", "description": "For load balancers and orchestrators."},
        ],
    )
    purgatory = Purgatory(limits=settings.limits(), listeners=() if journal is None else [journal])
    install(
        app,
        purgatory,
        settings=settings.wait_settings(),
        authorize=settings.bearer_tokens(),
    )
    app.include_router(create_health_router(purgatory))
    add_docs(app)
    return app
