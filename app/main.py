"""The application: where the edges meet."""

from __future__ import annotations

import logging
import os
from importlib.metadata import version

from fastapi import FastAPI

from app.docs import add_docs
from app.environment import unknown_variables
from app.journal import create_journal, journal_lifespan
from app.settings import Settings
from purgatory import Purgatory
from purgatory.fastapi import create_health_router, install
from purgatory.jobs import CALLBACK, JobStore

logger = logging.getLogger("purgatory.app")

DESCRIPTION = """
Park a request until something happens; do it with `GET /purgatory/watch/{key}`, and make it happen
with `POST /purgatory/keys/{key}`.

Do something later with `POST /purgatory/jobs`: call an address back at a deadline, or as soon as a
key fires, or not at all because it fired.

Every refusal is problem details (RFC 9457), and its `type` is an address that says what to do.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service. For an ASGI server: `uvicorn --factory app.main:create_app`."""
    settings = Settings() if settings is None else settings
    for sentence in unknown_variables(os.environ):
        logger.warning("%s", sentence, extra={"action": "unknown-setting"})
    journal = create_journal(settings)
    app = FastAPI(
        title="Purgatory",
        version=version("fastapi-purgatory"),
        description=DESCRIPTION,
        lifespan=journal_lifespan(journal),
        docs_url=None,
        redoc_url=None,
        openapi_tags=[
            {"name": "purgatory", "description": "Wait for keys, fire them, and defer."},
            {"name": "health", "description": "For load balancers and orchestrators."},
        ],
    )
    purgatory = Purgatory(
        limits=settings.limits(),
        listeners=() if journal is None else [journal],
        jobs=_job_store(settings),
        job_settings=settings.job_settings(),
    )
    purgatory.handler(CALLBACK)(settings.webhook())
    purgatory.handled_elsewhere(settings.elsewhere())
    install(
        app,
        purgatory,
        settings=settings.wait_settings(),
        authorize=settings.bearer_tokens(),
    )
    app.include_router(create_health_router(purgatory))
    add_docs(app)
    return app


def _job_store(settings: Settings) -> JobStore:
    try:
        return settings.job_store()
    except (ValueError, OSError, ImportError) as exc:
        # Not the URL itself, which may hold a password.
        raise ValueError(f"PURGATORY_JOBS_URL or PURGATORY_DATA_DIR: {exc}") from exc
