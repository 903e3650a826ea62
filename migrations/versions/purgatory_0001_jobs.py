"""The tables of delayed jobs.

Revision ID: purgatory_0001
Revises:
Create Date: 2026-11-29
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0001"
down_revision = None
branch_labels = ("purgatory",)
depends_on = None

_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create them."""
    _create_jobs()
    op.create_table(
        "purgatory_job_keys",
        sa.Column("key", _BYTES, primary_key=True),
        sa.Column("job_id", _BYTES, primary_key=True),
        sa.Column("is_open", sa.Boolean, nullable=False),
    )
    _index("purgatory_job_keys", "open", ["key", "job_id"], where="is_open")
    _index("purgatory_job_keys", "job_id", ["job_id"])
    op.create_table(
        "purgatory_job_requests",
        sa.Column("name", _BYTES, primary_key=True),
        sa.Column("job_id", _BYTES, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("noted_ms", sa.BigInteger, nullable=False),
    )
    _index("purgatory_job_requests", "job_id", ["job_id", "noted_ms"])
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
        "purgatory_outbox",
        sa.Column("number", _NUMBER, primary_key=True),
        sa.Column("origin", _BYTES, nullable=False),
        sa.Column("key", _BYTES, nullable=False),
        sa.Column("value_json", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("traceparent", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_table("purgatory_paused_handlers", sa.Column("name", _BYTES, primary_key=True))
    op.create_table(
        "purgatory_quarantined_jobs",
        sa.Column("number", _NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("quarantined_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop them, and every job with them."""
    for name in (
        "purgatory_quarantined_jobs",
        "purgatory_paused_handlers",
        "purgatory_outbox",
        "purgatory_job_counts",
        "purgatory_job_requests",
        "purgatory_job_keys",
        "purgatory_jobs",
    ):
        op.drop_table(name)


def _create_jobs() -> None:
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
        sa.Column("concurrency_key", _BYTES),
        sa.Column("owner", sa.Text),
        sa.Column("max_attempts", sa.BigInteger, nullable=False),
        sa.Column("misfire", sa.Text, nullable=False),
        sa.Column("ceiling_ms", sa.BigInteger),
        sa.Column("state", _BYTES, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("fired_key", sa.Text),
        sa.Column("fired_json", sa.Text),
        sa.Column("needed", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("fired_before_json", sa.Text),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("round", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("round_ms", sa.BigInteger),
        sa.Column("worker", sa.Text),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("leased_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("blocked_by", sa.Text),
        sa.Column("slot_ms", sa.BigInteger),
        sa.Column("lateness_ms", sa.BigInteger),
        sa.Column("finished_ms", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("traceparent", sa.Text),
        sa.CheckConstraint(
            "state = 'waiting' OR state = 'running' OR state = 'done'"
            " OR state = 'failed' OR state = 'cancelled'",
            name="ck_purgatory_jobs_state",
        ),
    )
    for name, columns, where in (
        (
            "free",
            ["handler", "due_ms", "id"],
            "finished_ms IS NULL AND lease_until_ms = 0 AND blocked_by IS NULL",
        ),
        ("leased", ["lease_until_ms"], "finished_ms IS NULL AND lease_until_ms > 0"),
        ("finished", ["finished_ms", "id"], "finished_ms IS NOT NULL"),
        ("slots", ["handler", "concurrency_key"], "slot_ms IS NOT NULL"),
        ("blocked", ["id"], "blocked_by IS NOT NULL"),
        ("blocked_by_handler", ["handler", "due_ms", "id"], "blocked_by = 'max_running'"),
        (
            "blocked_by_key",
            ["handler", "concurrency_key", "due_ms", "id"],
            "blocked_by = 'max_running_per_key'",
        ),
        ("blocked_by_pause", ["id"], "blocked_by = 'paused'"),
        ("state", ["state", "id"], None),
        ("handler", ["handler", "id"], None),
    ):
        _index("purgatory_jobs", name, columns, where=where)
    has_dedupe_key = "dedupe_key IS NOT NULL AND outcome IS NULL"
    _index("purgatory_jobs", "dedupe_key", ["dedupe_key"], where=has_dedupe_key, unique=True)


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
