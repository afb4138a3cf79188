"""Record which engine and which model answer a call: a run may use several."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NAMES = ("engine", "engine_name", "model")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("calls", sa.Column(name, sa.Text(), nullable=True))
    op.add_column(
        "calls",
        sa.Column("random_weights", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    for name in (*_NAMES, "random_weights"):
        op.drop_column("calls", name)
