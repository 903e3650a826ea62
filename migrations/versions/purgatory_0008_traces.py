"""The trace context of jobs and of the application's own fires.

Revision ID: purgatory_0008
Revises: purgatory_0007
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0008"
down_revision = "purgatory_0007"
branch_labels = None
depends_on = None

_TABLES = ("purgatory_jobs", "purgatory_outbox")


def upgrade() -> None:
    """Add it; what is stored has none, and neither has what is not traced."""
    for table in _TABLES:
        op.add_column(table, sa.Column("traceparent", sa.Text))


def downgrade() -> None:
    """Drop it: runs of jobs that are stored are linked to nothing."""
    for table in _TABLES:
        op.drop_column(table, "traceparent")
