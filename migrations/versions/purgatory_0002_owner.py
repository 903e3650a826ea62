"""The owners of jobs.

Revision ID: purgatory_0002
Revises: purgatory_0001
Create Date: 2026-11-22
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0002"
down_revision = "purgatory_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their column; jobs that are stored have none."""
    op.add_column("purgatory_jobs", sa.Column("owner", sa.Text))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("purgatory_jobs", "owner")
