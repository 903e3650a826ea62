"""Jobs that are decided by several of their keys.

Revision ID: purgatory_0003
Revises: purgatory_0002
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0003"
down_revision = "purgatory_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add how many keys a job needs, and which have fired; jobs that are stored need one."""
    needed = sa.Column("needed", sa.BigInteger, nullable=False, server_default="1")
    op.add_column("purgatory_jobs", needed)
    op.add_column("purgatory_jobs", sa.Column("fired_before_json", sa.Text))


def downgrade() -> None:
    """Drop both: a job that waits for several keys is then decided by the next that fires."""
    op.drop_column("purgatory_jobs", "fired_before_json")
    op.drop_column("purgatory_jobs", "needed")
