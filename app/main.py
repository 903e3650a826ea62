"""The composition of the service's application."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, NoReturn

from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse

from app.api_docs import add_docs
from app.journal import create_journal, journal_lifespan
from app.settings import Settings
from app.tracing import fastapi_options, trace_service
from app.unknown_settings import unknown_settings
from purgatory import Purgatory
from purgatory.fastapi import create_health_router, install
from purgatory.jobs.callbacks import CALLBACK

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.app")

DESCRIPTION = """
Park a request until a key fires with `GET /purgatory/watch/{key}`. Fire the key with
`POST /purgatory/keys/{key}`.

Defer a callback with `POST /purgatory/jobs`: it is sent at a deadline, or as soon as a key fires,
or not at all because the key fired.

Every error is a problem details object (RFC 9457). Its `type` is a URL that says what to do.
"""


def create_app(settings: Settings | None = None, *, warns: bool = True) -> FastAPI:
    """Return the service's application; ASGI servers use `--factory app.main:create_app`.

    Logs what the settings leave open, and unknown ones, unless `warns` is false. Raises ValueError
    with the name of the wrong variable, and JournalUnavailableError.
    """
    settings = Settings() if settings is None else settings
    if warns:
        _log_warnings(settings)
    journal = create_journal(settings)
    app = FastAPI(
        title="Purgatory",
        version=version("fastapi-purgatory"),
        description=DESCRIPTION,
        lifespan=journal_lifespan(journal),
        docs_url=None,
        redoc_url=None,
        openapi_tags=[
            {"name": "purgatory", "description": "Wait for keys, fire keys, and defer jobs."},
            {"name": "health", "description": "For load balancers and orchestrators."},
        ],
        **(fastapi_options() if settings.tracing else {}),
    )
    # The error must not show the URL, which may contain a password.
    with _naming_variables("PURGATORY_JOBS_URL or PURGATORY_DATA_DIR"):
        jobs = settings.job_store()
    with _naming_variables("PURGATORY_SIGNALS"):
        signals = settings.shared_signals()
    with _naming_variables("PURGATORY_TOKENS, PURGATORY_TOKENS_FILE or PURGATORY_ALLOWED_HOSTS"):
        authorize = settings.authorize()
    purgatory = Purgatory(
        limits=settings.limits(),
        listeners=() if journal is None else [journal],
        jobs=jobs,
        job_settings=settings.job_settings(),
        signals=signals,
    )
    with _naming_variables("PURGATORY_CALLBACK_ALLOWED_HOSTS or PURGATORY_CALLBACK_SECRETS"):
        purgatory.handler(CALLBACK, http=True)(settings.webhook())
    with _naming_variables("PURGATORY_JOB_HANDLERS"):
        purgatory.handled_elsewhere(settings.handled_elsewhere(), http=True)
    install(
        app,
        purgatory,
        settings=settings.wait_settings(),
        authorize=authorize,
        problem_details="app",
        metrics=_collector(settings, purgatory),
    )
    if settings.tracing:
        with _naming_variables("PURGATORY_TRACING"):
            trace_service(app, purgatory)
    _add_metrics_routes(app, is_on=settings.metrics)
    app.include_router(create_health_router(purgatory))
    add_docs(app)
    return app


def _collector(settings: Settings, purgatory: Purgatory) -> PurgatoryCollector | Literal[False]:
    if not settings.metrics:
        return False
    with _naming_variables("PURGATORY_METRICS"):
        # Imported here: the service needs prometheus-client only if it has metrics.
        from purgatory.metrics import PurgatoryCollector

        return PurgatoryCollector(purgatory, directory=settings.metrics_dir)


def _add_metrics_routes(app: FastAPI, *, is_on: bool) -> None:
    """Add `/metrics`, where scrapers look by default; without metrics, an error that says so."""
    if is_on:
        app.add_route("/metrics", _redirect_to_metrics, include_in_schema=False)
    else:
        for path in ("/metrics", "/purgatory/metrics"):
            app.add_route(path, _refuse_metrics, include_in_schema=False)


async def _redirect_to_metrics(request: Request) -> RedirectResponse:
    return RedirectResponse("/purgatory/metrics", status_code=308)


async def _refuse_metrics(request: Request) -> NoReturn:
    raise HTTPException(404, "metrics are off: set PURGATORY_METRICS=true to have them here")


def _log_warnings(settings: Settings) -> None:
    for warning in unknown_settings(os.environ):
        logger.warning("%s", warning, extra={"action": "unknown-setting"})
    if not settings.has_tokens:
        logger.log(
            logging.WARNING if settings.allow_anonymous else logging.INFO,
            "no tokens: everyone who can reach this process may do everything; set "
            "PURGATORY_TOKENS_FILE or PURGATORY_TOKENS to change that",
            extra={"action": "no-tokens"},
        )


@contextmanager
def _naming_variables(variables: str) -> Iterator[None]:
    """Prefix errors with the names of the variables that cause them."""
    try:
        yield
    except (ValueError, OSError, ImportError) as exc:
        raise ValueError(f"{variables}: {exc}") from exc
