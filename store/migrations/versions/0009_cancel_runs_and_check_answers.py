"""Record that a run is to be cancelled, and the JSON schema of a question's answers."""

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
    op.add_column("steps", sa.Column("answer_schema", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "cancel_requested_at")
    op.drop_column("steps", "answer_schema")
