"""Fires of the application's own transactions.

Revision ID: purgatory_0004
Revises: purgatory_0003
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0004"
down_revision = "purgatory_0003"
branch_labels = None
depends_on = None

_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        "purgatory_outbox",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("origin", _BYTES, nullable=False),
        sa.Column("key", _BYTES, nullable=False),
        sa.Column("value_json", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """Drop it, and what has not been fired."""
    op.drop_table("purgatory_outbox")
