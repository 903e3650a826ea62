"""Steps in transactions of the application: its sessions, their commits, jobs and fires in them.

Not here: transactions of the store itself, and the relay that fires what is committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, RootTransaction, delete, event, false
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from purgatory.errors import wrong_type
from purgatory.job_errors import JobError, StoreNotReadyError, StoreUnavailableError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.errors import is_sqlite_busy, must_repeat, store_error
from purgatory.jobs.sql.job_transaction import JobTransaction, MustLookFirstError
from purgatory.jobs.sql.tables import outbox
from purgatory.jobs.sql.unit_of_work import UnitOfWork
from purgatory.jobs.stores.protocol import NewFire

# How soon to look whether a commit is done, and how often at least.
_LOOK_AFTER_S: Final = 0.001
_MAX_PAUSE_S: Final = 0.1

Callback = Callable[[], object]

# {connection: what to call when its current transaction is committed}
_callbacks: WeakKeyDictionary[Connection, list[Callback]] = WeakKeyDictionary()


async def connection_of(session: Any) -> AsyncConnection:
    """Return the connection of a session's transaction, which it begins if there is none.

    Raises TypeError for what is no session, ValueError for one without transactions.
    """
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        connection = await session.connection()
    elif isinstance(session, AsyncConnection):
        connection = session
    else:
        raise wrong_type("session", session, "an AsyncSession or AsyncConnection of SQLAlchemy")
    if connection.sync_connection is None:
        raise ValueError("session is a connection that is not open: use it in `async with`")
    if _is_in_autocommit(connection.sync_connection):
        raise ValueError(
            "session is in autocommit mode, and so has no transaction to take part in: leave "
            "session out, or use a session with transactions"
        )
    return connection


def _is_in_autocommit(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    # An engine may have been made so. SQLite's driver has no such attribute: BEGIN works there.
    return getattr(connection.connection.dbapi_connection, "autocommit", False) is True


def call_on_commit(connection: Connection, callback: Callback) -> None:
    """Call `callback` on the event loop once the transaction of `connection` is committed.

    Not after a rollback. The end of a savepoint, also by a session that was made with the
    connection, commits nothing.
    """
    # Once for a connection: SQLAlchemy keeps a listener, and what it refers to, even after `once`.
    if connection not in _callbacks:
        _callbacks[connection] = []
        event.listen(connection, "commit", _on_commit)
        event.listen(connection, "rollback", _forget)
    _callbacks[connection].append(callback)


def _on_commit(connection: Connection) -> None:
    # It is about to be committed.
    callbacks = tuple(_callbacks[connection])
    _forget(connection)
    transaction = connection.get_transaction()
    if callbacks and transaction is not None:
        _call_after(transaction, callbacks, _LOOK_AFTER_S)


def _forget(connection: Connection) -> None:
    _callbacks[connection].clear()


def _call_after(
    transaction: RootTransaction, callbacks: tuple[Callback, ...], pause_s: float
) -> None:
    if transaction.is_active:
        # As long again as it has taken so far, at most.
        asyncio.get_running_loop().call_later(
            pause_s, _call_after, transaction, callbacks, min(2 * pause_s, _MAX_PAUSE_S)
        )
        return
    for callback in callbacks:
        callback()


T = TypeVar("T")

# Rows of counts apart from those of the stores, which must not wait for the application to commit:
# as many transactions as this are unlikely to meet in one.
_FIRST_SHARD: Final = 64
_SHARDS: Final = 1_024
_MAX_TRIES: Final = 5


# {key that a transaction of the application has fired: when it did last}, the latest at the end.
_Fired = dict[str, int]


class ApplicationSteps:
    """Adds jobs and stores fires on the connections of the application.

    `announce` is called with the work of a transaction that was committed.
    """

    def __init__(self, database: Database, *, announce: Callable[[UnitOfWork], object]) -> None:
        self._database = database
        self._announce = announce
        # By SQLAlchemy's own, to which no value may refer: it would keep it, and its connection.
        self._fired: WeakKeyDictionary[object, _Fired] = WeakKeyDictionary()
        self._ours: object = None
        # Engines that were found to lead to the database of jobs.
        self._known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    async def open(self) -> None:
        """Note which database this is.

        Not in the first transaction of a session, which holds a connection and locks: all
        connections of the pool could be held by sessions that wait for these.
        """
        self._ours = await self._database.read(_identity)

    async def add(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Return the result of `Add` for each spec, in the transaction of `session`."""
        steps = [Add(spec) for spec in specs]

        def add(work: UnitOfWork, fired: _Fired, is_careful: bool) -> list[Added | JobError]:
            # Later than the fires of the same transaction, which do not decide it.
            work.now_ms = max(work.now_ms, 1 + next(reversed(fired.values()), 0))
            work.fired_keys = fired.keys()
            transaction = JobTransaction(work, is_careful=is_careful)
            results = list(transaction.run({Add: steps})[Add])
            call_on_commit(work.connection, lambda: self._announce(work))
            return results

        return await self._run(session, add)

    async def fire(self, session: Any, fire: NewFire, on_commit: Callable[[], object]) -> None:
        """Store a fire in the transaction of `session`."""

        def store(work: UnitOfWork, fired: _Fired, is_careful: bool) -> None:
            work.store_fire(fire)
            fired.pop(fire.key, None)
            fired[fire.key] = work.now_ms
            call_on_commit(work.connection, on_commit)

        await self._run(session, store)

    async def _run(self, session: Any, steps: Callable[[UnitOfWork, _Fired, bool], T]) -> T:
        connection = await connection_of(session)
        await self._require_same_database(connection)
        try:
            return await connection.run_sync(self._run_in, steps)
        except DBAPIError as exc:
            error = store_error(exc)
            if error is None:
                raise
            raise error from exc

    def _run_in(self, connection: Connection, steps: Callable[[UnitOfWork, _Fired, bool], T]) -> T:
        if self._database.statements.dialect.is_sqlite:
            _lock_for_writing(connection)
            return steps(*self._begin(connection), True)
        is_careful = False
        for _ in range(_MAX_TRIES):
            try:
                with connection.begin_nested():
                    return steps(*self._begin(connection), is_careful)
            except MustLookFirstError:
                pass
            except DBAPIError as exc:
                if not must_repeat(exc):
                    raise
            is_careful = True
        raise StoreUnavailableError(
            f"other processes changed the same jobs {_MAX_TRIES} times in a row: nothing was "
            "done; roll the transaction back and try again"
        )

    def _begin(self, connection: Connection) -> tuple[UnitOfWork, _Fired]:
        work = UnitOfWork(
            connection,
            self._database,
            shard=_FIRST_SHARD + id(connection) // 64 % _SHARDS,
            is_counting=True,
            is_ours=False,
        )
        return work, self._fired.setdefault(connection.get_transaction(), {})

    async def _require_same_database(self, connection: Any) -> None:
        engine = connection.engine.sync_engine
        if engine in self._known:
            return
        try:
            theirs = await connection.run_sync(_identity)
        except DBAPIError as exc:
            raise store_error(exc) or exc from exc
        if theirs != self._ours:
            # The server may have started anew since.
            await self.open()
        if theirs != self._ours:
            raise StoreNotReadyError(
                "session belongs to another database than the store of jobs, so that one commit "
                "cannot be for both: give a session of the same database, or leave session out"
            )
        self._known[engine] = True


def _lock_for_writing(connection: Connection) -> None:
    """Take SQLite's lock for writing before anything is read, as a reader cannot wait for it."""
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        # Python's driver begins with the first change only.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    # It was begun by a savepoint, or by the application: a change of no row takes the lock.
    try:
        connection.execute(delete(outbox).where(false()))
    except OperationalError as exc:
        if not is_sqlite_busy(exc):
            raise
        raise StoreUnavailableError(
            "another process writes to the database of jobs, or has since this transaction has "
            "read from it: nothing was done; roll it back and try again, and defer or fire before "
            "it reads"
        ) from exc


def _identity(connection: Connection) -> object:
    """Return what identifies this database and its tables of jobs."""
    if connection.dialect.name == "sqlite":
        files = connection.exec_driver_sql("PRAGMA database_list").all()
        return next((os.path.realpath(row[2]) for row in files if row[1] == "main"), "")
    if connection.dialect.name != "postgresql":
        return connection.dialect.name
    return tuple(
        connection.exec_driver_sql(
            "SELECT current_database(), pg_postmaster_start_time(), "
            f"to_regclass('{outbox.name}')::oid"
        ).one()
    )
