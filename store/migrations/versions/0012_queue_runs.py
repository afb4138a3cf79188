"""Queue runs: where they wait, in which order, with which limits; and schedules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_INDEXES = ("ix_runs_queued", "ix_runs_in_progress", "ix_runs_dedup_key")
_OF_RUNS = (
    "queue",
    "rank",
    "due_at",
    "not_before",
    "dedup_key",
    "failed_attempts",
    "max_attempts",
    "retry_s",
    "code_version",
)


def upgrade() -> None:
    for column in _new_columns():
        op.add_column("runs", column)
    _create_index(
        "ix_runs_queued",
        ["queue", "rank", "due_at", "started_at", "id"],
        "status = 'queued'",
    )
    _create_index(
        "ix_runs_in_progress",
        ["queue", "leased_until"],
        "status = 'running' AND queue IS NOT NULL",
    )
    _create_index(
        "ix_runs_dedup_key",
        ["queue", "dedup_key"],
        "dedup_key IS NOT NULL AND status IN ('queued', 'running')",
        unique=True,
    )
    _create_queues()
    _create_schedules()


def _new_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("queue", sa.Text(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dedup_key", sa.Text(), nullable=True),
        sa.Column("failed_attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("retry_s", sa.Double(), nullable=True),
        sa.Column("code_version", sa.Text(), nullable=True),
    ]


def _create_index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(
        name, "runs", columns, unique=unique, sqlite_where=condition, postgresql_where=condition
    )


def _create_queues() -> None:
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("max_running_of_user", sa.Integer(), nullable=True),
        sa.Column("is_paused", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("is_draining", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("name", name="pk_queues"),
    )


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("flow", sa.Text(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=True),
        sa.Column("arguments", sa.LargeBinary(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("deadline_s", sa.Double(), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("retry_s", sa.Double(), nullable=True),
        sa.Column("slo_user", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_schedules"),
    )
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])


def downgrade() -> None:
    """The former version knows neither waiting nor dead runs: they are cancelled, or failed."""
    op.drop_table("schedules")
    op.drop_table("queues")
    op.execute("UPDATE runs SET status = 'failed' WHERE status = 'dead'")
    op.execute("UPDATE runs SET status = 'cancelled' WHERE status = 'queued'")
    for name in _INDEXES:
        op.drop_index(name, "runs")
    for name in _OF_RUNS:
        op.drop_column("runs", name)
