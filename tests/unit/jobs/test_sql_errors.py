"""Errors of PostgreSQL, as errors of a store."""

from __future__ import annotations

from asyncpg.exceptions import (  # type: ignore[import-untyped]  # it has no types
    CannotConnectNowError,
    ConnectionDoesNotExistError,
    InvalidCatalogNameError,
    PostgresError,
    TooManyConnectionsError,
)

from purgatory.jobs.model import StoreError, StoreNotReadyError, StoreUnavailableError
from purgatory.jobs.sql.errors import store_error
from tests.cases import cases


@cases(
    "kind, expected",
    [
        (CannotConnectNowError, StoreUnavailableError),
        (ConnectionDoesNotExistError, StoreUnavailableError),
        (TooManyConnectionsError, StoreUnavailableError),
        (InvalidCatalogNameError, StoreNotReadyError),
    ],
)
def test_what_the_driver_raises_as_it_connects(
    kind: type[PostgresError], expected: type[StoreError]
) -> None:
    """SQLAlchemy 2.0 passes it on as it is."""
    assert type(store_error(kind("the reason"))) is expected


def test_an_error_of_another_origin() -> None:
    """It is left as it is."""
    assert store_error(ValueError("the reason")) is None
