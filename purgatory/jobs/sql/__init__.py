"""The job store in SQLite or PostgreSQL: tables, transactions, records, migrations.

`database` connects, `statements` has the SQL, `locking` what must not deadlock, `sqlite` what only
SQLite needs, `application` steps in transactions of the application. The only room that imports
SQLAlchemy and Alembic. Not here: what a step does with a job, which is the same in every store
(`jobs.model`). Needs the extra `sql` or `postgresql`.
"""

try:
    from purgatory.jobs.sql.migrations import VERSION_TABLE, migrate, migrate_in, migrations_path
    from purgatory.jobs.sql.store import SqlJobStore
    from purgatory.jobs.sql.tables import metadata
except ModuleNotFoundError as exc:
    raise ImportError(
        f"purgatory.jobs.sql needs {exc.name}: pip install 'fastapi-purgatory[sql]' for SQLite, "
        "or 'fastapi-purgatory[postgresql]'"
    ) from exc

__all__ = ["VERSION_TABLE", "SqlJobStore", "metadata", "migrate", "migrate_in", "migrations_path"]
