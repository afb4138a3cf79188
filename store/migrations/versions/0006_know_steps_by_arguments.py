"""Record a digest of a step's arguments, which steps ended their run, and a process's identity."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("arguments", sa.LargeBinary(), nullable=True))
    op.add_column(
        "steps", sa.Column("ended_run", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("runs", sa.Column("process", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "arguments")
    op.drop_column("steps", "ended_run")
    op.drop_column("runs", "process")
