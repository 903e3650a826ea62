"""Where an endpoint of the application finds the limit on what its client has parked."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import Scope

from purgatory import Purgatory
from purgatory.fastapi.watch.settings import CLIENTS_STATE_KEY, PerClientLimit, installed_limit


def _application(limit: PerClientLimit | None) -> FastAPI:
    app = FastAPI()
    if limit is not None:
        setattr(app.state, CLIENTS_STATE_KEY, limit)
    return app


def test_the_state_of_either_the_application_or_the_lifespan_is_enough() -> None:
    """A mounted application has no state of its own; some servers keep none of the lifespan."""
    limit = PerClientLimit(1, Purgatory())
    of_lifespan: Scope = {"state": {CLIENTS_STATE_KEY: limit}}
    for scope in (
        {"app": _application(limit)},
        {"app": _application(limit), "state": {}},
        {"app": _application(None), **of_lifespan},
        of_lifespan,
        {"app": _application(limit), **of_lifespan},
    ):
        assert installed_limit(scope) is limit


def test_the_application_comes_first() -> None:
    """Of several routers, each with a state of the lifespan, the first one counts for all."""
    first, last = (PerClientLimit(1, Purgatory()) for _ in range(2))
    assert (
        installed_limit({"app": _application(first), "state": {CLIENTS_STATE_KEY: last}}) is first
    )


def test_without_an_installed_purgatory() -> None:
    """Nothing is counted."""
    for scope in ({}, {"app": _application(None)}, {"app": _application(None), "state": {}}):
        assert installed_limit(scope) is None
