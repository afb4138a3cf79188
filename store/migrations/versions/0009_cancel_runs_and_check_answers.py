"""Record that a run is to be cancelled, a question's JSON schema, and times of stopped clocks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    requested_at = sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True)
    op.add_column("runs", requested_at)
    stopped_s: sa.Column[float] = sa.Column(
        "clock_stopped_s", sa.Double(), nullable=False, server_default=sa.text("0")
    )
    op.add_column("runs", stopped_s)
    op.add_column("steps", sa.Column("answer_schema", sa.JSON(), nullable=True))
    op.add_column(
        "steps", sa.Column("stops_clock", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    op.drop_column("runs", "cancel_requested_at")
    op.drop_column("runs", "clock_stopped_s")
    op.drop_column("steps", "answer_schema")
    op.drop_column("steps", "stops_clock")
