"""Handlers that are paused.

Revision ID: purgatory_0006
Revises: purgatory_0005
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0006"
down_revision = "purgatory_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make their table."""
    name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table("purgatory_paused_handlers", sa.Column("name", name, primary_key=True))


def downgrade() -> None:
    """Let the parked jobs go, and drop it."""
    op.execute(
        "UPDATE purgatory_jobs SET lease_until_ms = 0 WHERE finished_ms IS NULL "
        "AND lease_until_ms = 90000000000000"
    )
    op.drop_table("purgatory_paused_handlers")
