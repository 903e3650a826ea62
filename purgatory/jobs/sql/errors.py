"""Errors of a database, as errors of a store."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from purgatory.job_errors import (
    StoreError,
    StoreNotReadyError,
    StoreOutOfSpaceError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

# https://www.postgresql.org/docs/current/errcodes-appendix.html, by code or class
_DEADLOCK = ("40",)
_LOCK_TIMEOUT = ("55P03",)
_DISCONNECTED = ("08", "57P")
_UNAVAILABLE = ("08", "25P03", "53300", "57P", "57014", "55P03", "58", "XX000")
_FULL = ("53100",)
_READ_ONLY = ("25006", "42501")
_NOT_READY = ("42P01", "42703", "3F000")
_LOCKED_OUT = ("28", "3D000")

# Messages of SQLite: https://www.sqlite.org/rescode.html
_SQLITE_BUSY = "database is locked"
_SQLITE_UNAVAILABLE = (
    _SQLITE_BUSY,
    "database table is locked",
    "unable to open database file",
    "disk I/O error",
    "database schema is locked",
)
_SQLITE_FULL = ("database or disk is full",)
_SQLITE_READ_ONLY = ("attempt to write a readonly database",)
_SQLITE_NOT_READY = ("no such table", "no such column", "has no column named")
_SQLITE_DAMAGED = ("database disk image is malformed", "file is not a database")


def must_repeat(error: Exception) -> bool:
    """Return True iff another transaction was in the way: repeated, this one will see it."""
    return isinstance(error, IntegrityError) or _has_code(error, _DEADLOCK)


def is_lock_timeout(error: Exception) -> bool:
    """Return True iff a row stayed locked by another transaction for too long: nothing was done."""
    return _has_code(error, _LOCK_TIMEOUT)


def is_disconnect(error: Exception) -> bool:
    """Return True iff the server has ended the connection."""
    return _is_connection_lost(error) or _has_code(error, _DISCONNECTED)


def is_sqlite_busy(error: Exception) -> bool:
    """Return True iff another connection to the SQLite file writes, or has written meanwhile."""
    return _is(error, (), (_SQLITE_BUSY,))


def store_error(error: Exception, *, is_read: bool = False) -> StoreError | None:
    """Return the store's error for a vendor's error; None if it is not the database's.

    `is_read`: of a query, so that nothing is uncertain after it.
    """
    uncertain = "" if is_read else "the steps may or may not be done; "
    if isinstance(error, OSError | PoolTimeoutError | TimeoutError):
        return StoreUnavailableError(
            f"the database of jobs cannot be reached ({_text(error)}): {uncertain}try again, and "
            "check the server, its address, and the size of the pool"
        )
    # Older versions of SQLAlchemy do not wrap an error of asyncpg's as it connects.
    if not isinstance(error, DBAPIError) and _code(error) is None:
        return None
    text = _text(error)
    if _is(error, _FULL, _SQLITE_FULL):
        return StoreOutOfSpaceError(
            f"the database of jobs has no room left ({text}): nothing was stored; make room on its "
            "disk, and the same call can be made again"
        )
    if _is(error, _READ_ONLY, _SQLITE_READ_ONLY):
        return StoreReadOnlyError(
            f"the database of jobs is read-only ({text}): nothing was done; connect to the "
            "primary, with a user and a file that may be written"
        )
    if _is(error, _NOT_READY, _SQLITE_NOT_READY):
        return StoreNotReadyError(
            f"the database has no tables for jobs, or other ones ({text}): {HOW_TO_MIGRATE}"
        )
    if _has_code(error, _LOCKED_OUT):
        return StoreNotReadyError(
            f"the database of jobs refuses the login ({text}): check its name, the user, the "
            "password, and the access rules of the server"
        )
    if _is(error, (), _SQLITE_DAMAGED):
        return StoreNotReadyError(
            f"the file is not a SQLite database, or is damaged ({text}): restore it from a backup"
        )
    if is_sqlite_busy(error):
        return StoreUnavailableError(
            f"another transaction holds the lock for writing ({text}), perhaps one of yours, to "
            f"which a job or a fire was added with session=: {uncertain}commit that one first, or "
            "try again"
        )
    if _is_connection_lost(error) or _is(error, _UNAVAILABLE, _SQLITE_UNAVAILABLE):
        return StoreUnavailableError(
            f"the database of jobs did not answer ({text}): {uncertain}try again"
        )
    return StoreError(f"the database of jobs refused: {text}")


HOW_TO_MIGRATE = (
    "run `python -m purgatory.jobs.sql URL` with the database's URL, or "
    "`await purgatory.jobs.sql.migrate(URL)`, or call `purgatory.jobs.sql.migrate_in` in a "
    "migration of your own Alembic"
)


def _is_connection_lost(error: Exception) -> bool:
    is_invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
    return is_invalidated or isinstance(error, InterfaceError)


def _is(error: Exception, codes: tuple[str, ...], messages: tuple[str, ...]) -> bool:
    text = str(_cause(error))
    return _has_code(error, codes) or any(message in text for message in messages)


def _has_code(error: Exception, codes: tuple[str, ...]) -> bool:
    code = _code(error)
    return code is not None and bool(codes) and code.startswith(codes)


def _code(error: Exception) -> str | None:
    code = getattr(_cause(error), "sqlstate", None)
    return code if isinstance(code, str) else None


def _cause(error: Exception) -> BaseException:
    return getattr(error, "orig", None) or error


def _text(error: Exception) -> str:
    cause = _cause(error)
    return f"{type(cause).__name__}: {cause}"[:500]
