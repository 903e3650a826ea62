"""Jobs in SQLite or PostgreSQL."""

try:
    from purgatory.jobs.sql.migrations import VERSION_TABLE, migrate, migrations_path
    from purgatory.jobs.sql.store import SqlJobStore
    from purgatory.jobs.sql.tables import metadata
except ModuleNotFoundError as exc:
    raise ImportError(
        f"purgatory.jobs.sql needs {exc.name}: install fastapi-purgatory[sql] for SQLite, or "
        "fastapi-purgatory[postgresql]"
    ) from exc

__all__ = ["VERSION_TABLE", "SqlJobStore", "metadata", "migrate", "migrations_path"]
