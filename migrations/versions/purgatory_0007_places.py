"""Bounds on how many jobs run at once: the places of jobs, and those that wait for one.

Revision ID: purgatory_0007
Revises: purgatory_0006
Create Date: 2026-11-23
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0007"
down_revision = "purgatory_0006"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_purgatory_jobs_placed": (["handler", "concurrency_key"], "placed_ms IS NOT NULL"),
    "ix_purgatory_jobs_blocked": (
        ["handler", "due_ms", "id"],
        "lease_until_ms = 90000000000001",
    ),
    "ix_purgatory_jobs_blocked_by_key": (
        ["handler", "concurrency_key", "due_ms", "id"],
        "lease_until_ms = 90000000000002",
    ),
}


def upgrade() -> None:
    """Add the key, and since when a job holds a place; jobs that are stored have neither."""
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("purgatory_jobs", sa.Column("concurrency_key", key))
    op.add_column("purgatory_jobs", sa.Column("placed_ms", sa.BigInteger))
    for name, (columns, condition) in _INDEXES.items():
        where = sa.text(condition)
        op.create_index(name, "purgatory_jobs", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Release the jobs that wait for a place, and drop all of it."""
    op.execute(
        "UPDATE purgatory_jobs SET lease_until_ms = 0 WHERE finished_ms IS NULL "
        "AND lease_until_ms IN (90000000000001, 90000000000002)"
    )
    for name in _INDEXES:
        op.drop_index(name, "purgatory_jobs")
    op.drop_column("purgatory_jobs", "placed_ms")
    op.drop_column("purgatory_jobs", "concurrency_key")
