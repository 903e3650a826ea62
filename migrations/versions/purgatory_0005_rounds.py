"""Jobs that wait again.

Revision ID: purgatory_0005
Revises: purgatory_0004
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0005"
down_revision = "purgatory_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add how often a job has waited again, and since when; jobs that are stored have not."""
    round_ = sa.Column("round", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("purgatory_jobs", round_)
    op.add_column("purgatory_jobs", sa.Column("round_ms", sa.BigInteger))


def downgrade() -> None:
    """Drop both."""
    op.drop_column("purgatory_jobs", "round_ms")
    op.drop_column("purgatory_jobs", "round")
