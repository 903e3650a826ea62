"""The application: where the edges meet."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from fastapi import FastAPI

from app.docs import add_docs
from app.environment import unknown_variables
from app.journal import create_journal, journal_lifespan
from app.settings import Settings
from purgatory import Purgatory
from purgatory.fastapi import create_health_router, install
from purgatory.jobs import CALLBACK

logger = logging.getLogger("purgatory.app")

DESCRIPTION = """
Park a request until something happens; do it with `GET /purgatory/watch/{key}`, and make it happen
with `POST /purgatory/keys/{key}`.

Do something later with `POST /purgatory/jobs`: call an address back at a deadline, or as soon as a
key fires, or not at all because it fired.

Every refusal is problem details (RFC 9457), and its `type` is an address that says what to do.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service. For an ASGI server: `uvicorn --factory app.main:create_app`.

    Raises ValueError, which names the variable to blame, and JournalUnavailableError.
    """
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
    # Not the URL itself, which may hold a password.
    with _blaming("PURGATORY_JOBS_URL or PURGATORY_DATA_DIR"):
        jobs = settings.job_store()
    with _blaming("PURGATORY_TOKENS or PURGATORY_TOKENS_FILE"):
        tokens = settings.bearer_tokens()
    purgatory = Purgatory(
        limits=settings.limits(),
        listeners=() if journal is None else [journal],
        jobs=jobs,
        job_settings=settings.job_settings(),
    )
    purgatory.handler(CALLBACK)(settings.webhook())
    with _blaming("PURGATORY_JOB_HANDLERS"):
        purgatory.handled_elsewhere(settings.elsewhere())
    install(app, purgatory, settings=settings.wait_settings(), authorize=tokens)
    app.include_router(create_health_router(purgatory))
    add_docs(app)
    return app


@contextmanager
def _blaming(variables: str) -> Iterator[None]:
    """Have what is raised begin with the variables that it is about."""
    try:
        yield
    except (ValueError, OSError, ImportError) as exc:
        raise ValueError(f"{variables}: {exc}") from exc
