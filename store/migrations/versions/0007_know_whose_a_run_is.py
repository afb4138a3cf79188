"""Record the user of a run, so that a resumed run keeps it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("slo_user", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("runs", column)


def downgrade() -> None:
    op.drop_column("runs", "slo_user")
