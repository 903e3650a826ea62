"""Lists of the jobs that are blocked, and of those with a concurrency key.

Revision ID: purgatory_0009
Revises: purgatory_0008
Create Date: 2026-11-24
"""

import sqlalchemy as sa
from alembic import op

revision = "purgatory_0009"
down_revision = "purgatory_0008"
branch_labels = None
depends_on = None

_INDEX = "ix_purgatory_jobs_held_up"
# Before a concurrency key among the keys of jobs: no watch key has control characters.
_MARK, _AFTER_MARK = "\x01", "\x02"


def upgrade() -> None:
    """Make the index, and note the concurrency keys of the jobs that are stored."""
    where = sa.text("lease_until_ms >= 90000000000000")
    op.create_index(_INDEX, "purgatory_jobs", ["id"], sqlite_where=where, postgresql_where=where)
    # As its owner gave it, without the owner in front of it.
    op.execute(
        sa.text(
            "INSERT INTO purgatory_job_keys (key, job_id, is_open) "
            "SELECT CAST(:mark AS TEXT) || CASE WHEN substr(concurrency_key, 1, 1) = '~' "
            "AND substr(concurrency_key, 18, 1) = '~' THEN substr(concurrency_key, 19) "
            "ELSE concurrency_key END, id, false "
            "FROM purgatory_jobs WHERE concurrency_key IS NOT NULL"
        ).bindparams(mark=_MARK)
    )


def downgrade() -> None:
    """Drop both."""
    op.execute(
        sa.text(
            "DELETE FROM purgatory_job_keys WHERE key >= :mark AND key < :after_mark"
        ).bindparams(mark=_MARK, after_mark=_AFTER_MARK)
    )
    op.drop_index(_INDEX, "purgatory_jobs")
