"""Reuse results of steps: the key under which other runs find a result."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("reuse_key", sa.LargeBinary(), nullable=True))
    op.create_index(
        "ix_steps_reuse_key",
        "steps",
        ["reuse_key"],
        sqlite_where=sa.text("reuse_key IS NOT NULL"),
        postgresql_where=sa.text("reuse_key IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_steps_reuse_key", "steps")
    op.drop_column("steps", "reuse_key")
