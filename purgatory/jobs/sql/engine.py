"""The engine of a store of jobs: which databases it may be, and how they are reached."""

from __future__ import annotations

from typing import Any

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from purgatory.redacted_url import redacted

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
# How long SQLite waits for another process that writes, and how long PostgreSQL may take to accept
# a connection or to answer: a server that hangs must not hang its callers.
BUSY_SECONDS = 5.0
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 30


def check_url(url: URL) -> None:
    """Raise ValueError unless the URL is of a database for jobs."""
    dialect = url.get_backend_name()
    if dialect not in _DRIVERS:
        raise ValueError(
            f"{dialect} cannot be a database of jobs: use one of {', '.join(sorted(_DRIVERS))}"
        )
    if dialect == "sqlite" and url.database in (None, "", ":memory:"):
        raise ValueError(
            "SQLite in memory is lost with its connection: name a file, or use MemoryJobStore"
        )


def make_engine(url_or_text: str | URL) -> AsyncEngine:
    """Return the engine for a URL; raise ValueError, or ImportError if its driver is missing."""
    try:
        url = make_url(url_or_text)
    except (ArgumentError, ValueError):
        # Without the original error, which may quote a part of the URL with its password.
        raise _not_a_url(redacted(str(url_or_text)), "it cannot be read") from None
    check_url(url)
    if url.drivername in _DRIVERS:
        url = url.set(drivername=_DRIVERS[url.drivername])
    arguments: dict[str, Any] = {"timeout": BUSY_SECONDS}
    if url.get_backend_name() == "postgresql":
        arguments = {"timeout": _CONNECT_SECONDS, "command_timeout": _ANSWER_SECONDS}
    try:
        return create_async_engine(url, connect_args=arguments, pool_timeout=_CONNECT_SECONDS)
    except ModuleNotFoundError as exc:
        if url.drivername not in _DRIVERS.values():
            raise _not_a_url(redacted(str(url_or_text)), f"{exc.name} is not installed") from exc
        raise ImportError(
            f"{url.drivername} needs {exc.name}: install fastapi-purgatory[sql] for SQLite, or "
            "fastapi-purgatory[postgresql]"
        ) from exc
    except (ArgumentError, InvalidRequestError) as exc:
        raise _not_a_url(redacted(str(url_or_text)), str(exc)) from exc


def _not_a_url(shown: str, reason: str) -> ValueError:
    drivers = " or ".join(f"{driver}://..." for driver in _DRIVERS.values())
    return ValueError(
        f"{shown!r} is not the URL of a database of jobs ({reason}): give one such as {drivers}, "
        "with every character of the password that is not a letter or digit percent-encoded"
    )
