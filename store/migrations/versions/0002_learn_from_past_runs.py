"""Learn from past runs: pattern libraries, fits, stages and predicted lengths."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runs_flow_started_at_id", "runs", ["flow", "started_at", "id"])
    op.add_column("calls", sa.Column("features", sa.LargeBinary(), nullable=True))
    op.add_column("calls", sa.Column("length_bound", sa.Double(), nullable=True))
    op.add_column("calls", sa.Column("bound_source", sa.Text(), nullable=True))
    extend_patterns()
    create_fits()
    create_stages()


def extend_patterns() -> None:
    """Add reuse counts. Existing patterns have no uses; `used_at` is when they were created."""
    op.add_column("patterns", sa.Column("uses", sa.Double(), nullable=True))
    op.add_column("patterns", sa.Column("used_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE patterns SET uses = 0, used_at = created_at")
    # SQLite copies the table for NOT NULL; the copy gets ids that are never reused.
    never_again = {"sqlite_autoincrement": True}
    with op.batch_alter_table("patterns", table_kwargs=never_again) as patterns:
        patterns.alter_column("uses", existing_type=sa.Double(), nullable=False)
        patterns.alter_column("used_at", existing_type=sa.DateTime(timezone=True), nullable=False)
    op.create_index(
        "ix_patterns_application_weight_id", "patterns", ["application", "weight", "id"]
    )


def create_fits() -> None:
    op.create_table(
        "fits",
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_pattern_id", sa.Integer(), nullable=False),
        sa.Column("num_patterns", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("application", name="pk_fits"),
    )


def create_stages() -> None:
    op.create_table(
        "stages",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("began_s", sa.Double(), nullable=False),
        sa.Column("sub_deadline_s", sa.Double(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("share", sa.Double(), nullable=True),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("num_candidates", sa.Integer(), nullable=False),
        sa.Column("num_matches", sa.Integer(), nullable=False),
        sa.Column("matches", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_stages_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "stage", name="pk_stages"),
    )


def downgrade() -> None:
    op.drop_table("stages")
    op.drop_table("fits")
    op.drop_index("ix_patterns_application_weight_id", "patterns")
    with op.batch_alter_table("patterns") as patterns:
        patterns.drop_column("used_at")
        patterns.drop_column("uses")
    with op.batch_alter_table("calls") as calls:
        calls.drop_column("bound_source")
        calls.drop_column("length_bound")
        calls.drop_column("features")
    op.drop_index("ix_runs_flow_started_at_id", "runs")
