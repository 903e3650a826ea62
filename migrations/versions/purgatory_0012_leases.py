"""When leases began.

Revision ID: purgatory_0012
Revises: purgatory_0011
Create Date: 2026-11-29
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0012"
down_revision = "purgatory_0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add its column; leases that are held began long ago."""
    begun = sa.Column("leased_ms", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("purgatory_jobs", begun)


def downgrade() -> None:
    """Drop it."""
    op.drop_column("purgatory_jobs", "leased_ms")
