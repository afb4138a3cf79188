"""Record the states of workspaces, what steps did to them, and checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OF_STEPS = ("workspace", "state_before", "state_after")


def upgrade() -> None:
    for name in _OF_STEPS:
        op.add_column("steps", sa.Column(name, sa.Text(), nullable=True))
    create_states()
    create_state_edges()
    create_checkpoints()


def create_states() -> None:
    op.create_table(
        "states",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("base_identity", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("shell", sa.Text(), nullable=False),
        sa.Column("num_entries", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("unused_since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_states"),
    )


def create_state_edges() -> None:
    op.create_table(
        "state_edges",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("attribute", sa.String(length=16), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("changed", sa.JSON(), nullable=False),
        sa.Column("num_changed", sa.Integer(), nullable=False),
        sa.Column("num_added", sa.Integer(), nullable=False),
        sa.Column("num_removed", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reads", sa.JSON(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_state_edges_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "path", "number", name="pk_state_edges"),
    )


def create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_checkpoints_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "path", name="pk_checkpoints"),
    )


def downgrade() -> None:
    for table in ("checkpoints", "state_edges", "states"):
        op.drop_table(table)
    for name in _OF_STEPS:
        op.drop_column("steps", name)
