"""Everything at once, for an application that exists."""

from __future__ import annotations

from fastapi import FastAPI

from purgatory.fastapi.errors import add_problem_handlers
from purgatory.fastapi.router import DEFAULT_PREFIX, create_router
from purgatory.fastapi.watch_request import WaitSettings
from purgatory.purgatory import Purgatory


def install(
    app: FastAPI,
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
    problem_details: bool = True,
) -> None:
    """Put `purgatory` into `app`: endpoints under `prefix`, lifespan, drain, and error bodies.

    Opens it when the application starts, answers every parked request when the process is told to
    stop, and closes it in the end; `PurgatoryDep` and `ParkDep` find it. The application's own
    lifespan runs as before.

    `problem_details=False` leaves the application's own errors as they are; ours are problem
    details all the same. Raises ValueError for a prefix that does not begin with a slash.
    """
    app.include_router(
        create_router(
            purgatory,
            prefix=prefix,
            settings=settings,
            allow_separate_workers=allow_separate_workers,
        )
    )
    app.state.purgatory = purgatory
    if problem_details:
        add_problem_handlers(app, prefix)
