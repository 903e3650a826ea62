"""The check of a server's settings: those with which it may lose jobs, or slow them down."""

from __future__ import annotations

from sqlalchemy import Connection

from purgatory.jobs.sql.sqlite.connection import use_write_ahead_log

_NOT_WAL = (
    "The journal mode of the SQLite file is {mode}, so that readers and the writer wait for one "
    "another: keep the file on a local disk, where WAL can be used"
)
_POSTGRESQL_WARNINGS = {
    "synchronous_commit": (
        "synchronous_commit is off, so that a crash of the PostgreSQL server loses the jobs that "
        "were acknowledged just before: set it to on"
    ),
    "fsync": "fsync is off, so that a power cut may lose every job in PostgreSQL: set it to on",
    "full_page_writes": (
        "full_page_writes is off, so that a power cut may damage jobs in PostgreSQL: set it to on"
    ),
}


def setting_warnings(connection: Connection) -> list[str]:
    """Return a sentence for each such setting, with the way out."""
    if connection.dialect.name == "sqlite":
        # Not only read: after `migrate_in`, nothing of ours has written to the file yet.
        mode = use_write_ahead_log(connection)
        return [] if mode == "wal" else [_NOT_WAL.format(mode=mode)]
    return [
        warning
        for setting, warning in _POSTGRESQL_WARNINGS.items()
        if connection.exec_driver_sql(f"SHOW {setting}").scalar_one() == "off"
    ]
