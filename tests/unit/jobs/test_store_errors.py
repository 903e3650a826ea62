"""Errors of Redis and of PostgreSQL, as errors of a store that name the way out."""

from __future__ import annotations

from asyncpg.exceptions import (  # type: ignore[import-untyped]  # it has no types
    CannotConnectNowError,
    ConnectionDoesNotExistError,
    InvalidCatalogNameError,
    PostgresError,
    TooManyConnectionsError,
)
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from purgatory.job_errors import (
    StoreError,
    StoreNotReadyError,
    StoreOutOfSpaceError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.redis.shards import no_reply_error, reply_error
from purgatory.jobs.sql.errors import store_error
from tests.cases import cases


@cases(
    "reply, way_out",
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", "disk is full"),
        ("MISCONF Redis is configured to save RDB snapshots, but unable to persist", "its disk"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("NOPERM User has no permissions to run the 'evalsha' command", "a user that may write"),
        ("READONLY You can't write against a read only replica.", "connect to the primary"),
    ],
)
def test_a_server_that_takes_no_writes(reply: str, way_out: str) -> None:
    """Only a replica is a reason to connect to another server."""
    error = reply_error(reply)
    assert isinstance(error, StoreReadOnlyError) and way_out in error.detail
    assert ("primary" in error.detail) is reply.startswith("READONLY")


@cases(
    "reply, expected",
    [
        (ReadOnlyError("You can't write against a read only replica."), StoreReadOnlyError),
        (ClusterDownError("The cluster is down"), StoreUnavailableError),
        (MasterDownError("Link with MASTER is down"), StoreUnavailableError),
        (TryAgainError("Multiple keys request during rehashing of slot"), StoreUnavailableError),
        (ResponseError("unknown command 'EVALSHA'"), StoreNotReadyError),
    ],
)
def test_an_error_whose_code_the_client_has_taken_off(
    reply: ResponseError, expected: type[StoreError]
) -> None:
    """It is the same error: what passes is tried again, a replica leads to its primary."""
    assert type(no_reply_error(reply)) is expected


def test_a_server_without_memory() -> None:
    """It refuses what needs memory, whatever limits of jobs say."""
    assert isinstance(reply_error("OOM command not allowed"), StoreOutOfSpaceError)


def test_what_the_server_said_to_a_login_is_not_lost() -> None:
    """The client reports it as a lost connection, which would be tried again for ever."""
    lost = ConnectionError("invalid username-password pair")
    lost.__cause__ = AuthenticationError("invalid username-password pair")
    error = no_reply_error(lost)
    assert isinstance(error, StoreNotReadyError) and "refuses the login" in error.detail
    lost.__cause__ = NoScriptError("NOSCRIPT")
    assert isinstance(no_reply_error(lost), StoreUnavailableError)


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
