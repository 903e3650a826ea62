"""Alembic's entry: runs on the connection of `purgatory.jobs.sql.migrate`, or prints SQL."""

from alembic import context

from purgatory.jobs.sql.migrations import VERSION_TABLE
from purgatory.jobs.sql.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "Run `python -m purgatory.jobs.sql URL`, or name this folder's versions/ in the "
        "version_locations of your own Alembic environment"
    )
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
# The transaction is that of whoever gave the connection.
context.run_migrations()
