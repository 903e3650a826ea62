"""Migrations of the tables, by Alembic; its scripts are in `migrations/` of the repository."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from alembic import command, context, op
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util.concurrency import await_only, in_greenlet

from purgatory.errors import wrong_type
from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.engine import check_folder
from purgatory.jobs.sql.errors import HOW_TO_MIGRATE, store_error

VERSION_TABLE = "purgatory_version"
# Of the latest script. Not read from the scripts: a package in an archive has none, and a service
# that starts need not load Alembic's.
_HEAD = "purgatory_0001"
# If an application's own Alembic ran our scripts.
_OTHER_VERSION_TABLE = "alembic_version"
_OURS = "purgatory_"
# Any number: of two processes that migrate at the same time, one waits.
_LOCK = 7_160_117_002
# Of two callers in one process, one waits, on whatever databases: Alembic has one `op` and one
# `context`. Callers of `migrate` wait before their transaction, which others would wait for.
_turn, _alembic = threading.Lock(), threading.Lock()
_alembic_thread: int | None = None
_LOOK_AGAIN_S = 0.05
# SQL_ASCII stores bytes as they are.
_UNICODE = ("UTF8", "SQL_ASCII")


def migrations_path() -> Path:
    """Return the folder of the revisions, for the version_locations of your Alembic."""
    return _scripts_path() / "versions"


def _scripts_path() -> Path:
    installed = Path(__file__).parent.parent / "migrations"
    # In the repository, and so in an editable install, they are at the top.
    return installed if installed.is_dir() else Path(__file__).parents[3] / "migrations"


async def migrate(url_or_engine: str | URL | AsyncEngine, revision: str = "head") -> None:
    """Bring the tables of jobs to a revision: make or change them; "base" drops them and all jobs.

    All or nothing, in one transaction. Idempotent, and safe from several tasks and processes at
    once, and within a migration of your own: one does it, the others wait. Not for databases whose
    own Alembic runs our scripts: upgrade there.
    Raises StoreUnavailableError, StoreReadOnlyError, StoreFullError; StoreNotReadyError if a later
    version has made the tables; ValueError for a URL that is not of a database of jobs, and for an
    unknown revision.
    """
    # A thread of ours has ended when this returns. The driver's may not, if it could not connect,
    # and then it complains of an event loop that is closed.
    database = Database(url_or_engine)
    while not _turn.acquire(blocking=False):  # noqa: ASYNC110 - an Event is of one loop, this of all
        await asyncio.sleep(_LOOK_AGAIN_S)
    try:
        check_folder(database.url)
        await database.write(
            lambda connection: _migrate(connection, revision, is_down=revision == "base")
        )
    except Exception as exc:
        error = store_error(exc)
        if error is None:
            raise
        raise error from exc
    finally:
        _turn.release()
        await database.close()


def migrate_in(connection: Connection, revision: str = "head", *, downgrade: bool = False) -> None:
    """Bring the tables of jobs to a revision within a migration of your own Alembic.

    In its transaction and its schema: `migrate_in(op.get_bind(), "purgatory_0001")`. Tables that
    are further already stay, unless `downgrade` or "base" says to go back to the revision, and to
    lose what it lacks. Idempotent. Raises StoreNotReadyError and ValueError as `migrate`, and
    errors of the database as they are; TypeError for what is no connection, as with `--sql`.
    """
    if not isinstance(connection, Connection):
        raise wrong_type(
            "connection",
            connection,
            "a Connection, such as op.get_bind(); it is read, so that `--sql`, which has none, "
            "cannot write SQL for later",
        )
    _migrate(connection, revision, is_down=downgrade or revision == "base")


def check_revision(connection: Connection) -> None:
    """Raise StoreNotReadyError unless the tables are those that this version works with."""
    _require_unicode(connection)
    found = _revisions(connection)
    if found == {_HEAD}:
        return
    if not found:
        raise StoreNotReadyError(f"the database has no tables for jobs: {HOW_TO_MIGRATE}")
    _require_known(found)
    # Several if both version tables exist, and differ.
    raise StoreNotReadyError(
        f"the tables of jobs are at revision {', '.join(sorted(found))}, and this version needs "
        f"{_HEAD}: {HOW_TO_MIGRATE}"
    )


def _require_unicode(connection: Connection) -> None:
    """Raise StoreNotReadyError if the database cannot store every key, payload and error.

    What it cannot store would fail the fires and jobs of others that share its transaction.
    """
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding not in _UNICODE:
        raise StoreNotReadyError(
            f"the database of jobs has the encoding {encoding}, which lacks most characters that "
            "keys and payloads may have: use a database that is created with ENCODING 'UTF8'"
        )


def _revisions(connection: Connection) -> set[str]:
    """Return the revisions of our scripts in the version tables."""
    tables = {VERSION_TABLE, _OTHER_VERSION_TABLE} & set(inspect(connection).get_table_names())
    return {
        str(revision)
        for table in tables
        for revision in connection.scalars(text(f"SELECT version_num FROM {table}"))  # noqa: S608 - one of our two names
        if str(revision).startswith(_OURS)
    }


def _require_known(found: set[str]) -> None:
    """Raise StoreNotReadyError if a later version has made the tables."""
    if found <= {script.revision for script in _scripts().walk_revisions()}:
        return
    raise StoreNotReadyError(
        f"the tables of jobs are at revision {', '.join(sorted(found))}, which is newer than this "
        f"version, of {_scripts().get_current_head()}: install the version of fastapi-purgatory "
        "that made them, or a later one"
    )


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    # An ini file's syntax, in which a percent sign is doubled.
    config.set_main_option("script_location", str(_scripts_path()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _migrate(connection: Connection, revision: str, *, is_down: bool) -> None:
    _require_unicode(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = _config()
    config.attributes["connection"] = connection
    step = command.downgrade if is_down else command.upgrade
    _require_known(_revisions(connection))
    try:
        with _alone_in_alembic():
            step(config, revision)
    except CommandError as exc:
        raise ValueError(
            f"there is no revision {revision!r} of the tables of jobs ({exc}): give head, or base "
            "to drop them and every job"
        ) from exc


@contextlib.contextmanager
def _alone_in_alembic() -> Iterator[None]:
    """Use Alembic when no other caller does, and leave its `op` and `context` as they were."""
    global _alembic_thread
    # Suspended on this thread, it goes on after us, as if it had called us.
    is_within = _alembic_thread == threading.get_ident() and not in_greenlet()
    while not is_within and not _alembic.acquire(timeout=0 if in_greenlet() else -1):
        await_only(asyncio.sleep(_LOOK_AGAIN_S))
    holder, _alembic_thread = _alembic_thread, threading.get_ident()
    outer = [getattr(module, "_proxy", None) for module in (op, context)]
    try:
        yield
    finally:
        for proxy in outer:
            if proxy is not None:
                proxy._install_proxy()
        _alembic_thread = holder
        if not is_within:
            _alembic.release()
