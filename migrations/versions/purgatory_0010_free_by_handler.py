"""Claims of the jobs of some handlers, however many of others are due.

Revision ID: purgatory_0010
Revises: purgatory_0009
Create Date: 2026-11-24
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0010"
down_revision = "purgatory_0009"
branch_labels = None
depends_on = None

_INDEX = "ix_purgatory_jobs_free_by_handler"


def upgrade() -> None:
    """Make the index. The one without handlers stays, for processes of older versions."""
    where = sa.text("finished_ms IS NULL AND lease_until_ms + 0 = 0")
    columns = ["handler", "due_ms", "id"]
    op.create_index(_INDEX, "purgatory_jobs", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Drop it."""
    op.drop_index(_INDEX, "purgatory_jobs")
