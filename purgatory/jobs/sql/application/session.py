"""The application's own transactions, with SQLAlchemy: their connection, and their commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from purgatory.wrong_type import wrong_type

_INFO: Final = "purgatory.on_commit"
# A connection says that it is about to commit, and a session that it has.
_LOOK_AFTER_S: Final = (0.002, 0.01, 0.05, 0.25, 1.0)

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


def call_on_commit(session: Any, callback: Callback) -> None:
    """Call `callback` on the event loop once the transaction of `session` is committed.

    That of an AsyncConnection, also of one that a session was made with, may not be over at the
    first call: it is called some times within a second. Not called after a rollback.
    """
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        bind = session.sync_session.get_bind()
        if not isinstance(bind, Connection):
            _of_session(session.sync_session, callback)
            return
    else:
        bind = session.sync_connection
    # Also of a session that was made with one: its own commit may end a savepoint only.
    _of_connection(bind, callback)


def _of_connection(connection: Connection, callback: Callback) -> None:
    # Once for a connection: SQLAlchemy keeps a listener, and what it refers to, even after `once`.
    if connection not in _callbacks:
        _callbacks[connection] = []
        event.listen(connection, "commit", _look_soon)
        event.listen(connection, "rollback", _forget)
    _callbacks[connection].append(callback)


def _look_soon(connection: Connection) -> None:
    callbacks = tuple(_callbacks[connection])
    _forget(connection)
    if callbacks:
        loop = asyncio.get_running_loop()
        for delay_s in _LOOK_AFTER_S:
            loop.call_later(delay_s, _call, callbacks)


def _forget(connection: Connection) -> None:
    _callbacks[connection].clear()


def _call(callbacks: tuple[Callback, ...]) -> None:
    for callback in callbacks:
        callback()


def _of_session(session: Session, callback: Callback) -> None:
    callbacks: list[Callback] | None = session.info.get(_INFO)
    if callbacks is None:
        callbacks = session.info[_INFO] = []
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_end)
    callbacks.append(callback)


def _after_commit(session: Session) -> None:
    # The end of a savepoint commits nothing.
    if session.in_nested_transaction():
        return
    for callback in session.info[_INFO]:
        callback()


def _after_end(session: Session, transaction: Any) -> None:
    if transaction.parent is None:
        session.info[_INFO].clear()
