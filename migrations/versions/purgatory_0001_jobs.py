"""The tables of delayed jobs.

Revision ID: purgatory_0001
Revises:
Create Date: 2026-11-21
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0001"
down_revision = None
branch_labels = ("purgatory",)
depends_on = None

_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "purgatory_jobs",
        sa.Column("id", _BYTES, primary_key=True),
        sa.Column("handler", _BYTES, nullable=False),
        sa.Column("payload_json", sa.Text, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("keys_json", sa.Text, nullable=False),
        sa.Column("on_fire", sa.Text, nullable=False),
        sa.Column("dedupe_key", _BYTES),
        sa.Column("max_attempts", sa.BigInteger, nullable=False),
        sa.Column("misfire", sa.Text, nullable=False),
        sa.Column("ceiling_ms", sa.BigInteger),
        sa.Column("state", _BYTES, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("fired_key", sa.Text),
        sa.Column("fired_json", sa.Text),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("lateness_ms", sa.BigInteger),
        sa.Column("finished_ms", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "purgatory_job_keys",
        sa.Column("key", _BYTES, primary_key=True),
        sa.Column("job_id", _BYTES, primary_key=True),
        sa.Column("is_open", sa.Boolean, nullable=False),
    )
    op.create_table(
        "purgatory_job_counts",
        sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("waiting", sa.BigInteger, nullable=False),
        sa.Column("running", sa.BigInteger, nullable=False),
        sa.Column("done", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("cancelled", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "purgatory_quarantined_jobs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("quarantined_ms", sa.BigInteger, nullable=False),
    )
    free = "finished_ms IS NULL AND lease_until_ms = 0"
    leased = "finished_ms IS NULL AND lease_until_ms > 0"
    has_dedupe_key = "dedupe_key IS NOT NULL AND outcome IS NULL"
    _index("purgatory_jobs", "free", ["due_ms", "id"], where=free)
    _index("purgatory_jobs", "leased", ["lease_until_ms"], where=leased)
    _index("purgatory_jobs", "dedupe_key", ["dedupe_key"], where=has_dedupe_key, unique=True)
    _index("purgatory_jobs", "finished", ["finished_ms", "id"], where="finished_ms IS NOT NULL")
    _index("purgatory_jobs", "state", ["state", "id"])
    _index("purgatory_jobs", "handler", ["handler", "id"])
    _index("purgatory_job_keys", "open", ["key", "job_id"], where="is_open")
    _index("purgatory_job_keys", "job_id", ["job_id"])


def downgrade() -> None:
    """Drop them, and every job with them."""
    op.drop_table("purgatory_quarantined_jobs")
    op.drop_table("purgatory_job_counts")
    op.drop_table("purgatory_job_keys")
    op.drop_table("purgatory_jobs")


def _index(
    table: str, name: str, columns: list[str], *, where: str | None = None, unique: bool = False
) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(
        f"ix_{table}_{name}",
        table,
        columns,
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )
