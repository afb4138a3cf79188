"""Know which patterns are of runs that were cut off by their deadlines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "patterns",
        sa.Column("is_cut_off", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    """The former version takes every run as whole, so those that were cut off are removed."""
    op.execute("DELETE FROM patterns WHERE is_cut_off")
    op.drop_column("patterns", "is_cut_off")
