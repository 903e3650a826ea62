"""Alembic's entry point: runs on the connection of `purgatory.jobs.sql.migrate`, or prints SQL."""

from alembic import context

from purgatory.jobs.sql.migrations import VERSION_TABLE
from purgatory.jobs.sql.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "Run `python -m purgatory.jobs.sql URL`, or call purgatory.jobs.sql.migrate_in in a "
        "migration of your own"
    )
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
# The transaction belongs to the caller that passed the connection.
context.run_migrations()
