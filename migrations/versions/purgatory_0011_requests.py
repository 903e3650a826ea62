"""Requests to add jobs that may be repeated.

Revision ID: purgatory_0011
Revises: purgatory_0010
Create Date: 2026-11-28
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0011"
down_revision = "purgatory_0010"
branch_labels = None
depends_on = None

_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_TABLE = "purgatory_job_requests"


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        _TABLE,
        sa.Column("name", _BYTES, primary_key=True),
        sa.Column("job_id", _BYTES, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("noted_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_purgatory_job_requests_job_id", _TABLE, ["job_id", "noted_ms"])


def downgrade() -> None:
    """Drop it: repeats of the requests add jobs again."""
    op.drop_table(_TABLE)
