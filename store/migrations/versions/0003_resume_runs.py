"""Resume runs: the kinds, effects and results of steps, and the lease of a run."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Steps that were recorded before have no results: their runs can be shown but not resumed.
STEP_DEFAULTS: dict[str, tuple[sa.types.TypeEngine[Any], str]] = {
    "kind": (sa.String(length=16), "'step'"),
    "place": (sa.Integer(), "0"),
    "effects": (sa.String(length=16), "'pure'"),
    "attempts": (sa.Integer(), "1"),
}


def upgrade() -> None:
    extend_steps()
    extend_runs()


def extend_steps() -> None:
    for name, (kind, _) in STEP_DEFAULTS.items():
        op.add_column("steps", sa.Column(name, kind, nullable=True))
    values = ", ".join(f"{name} = {value}" for name, (_, value) in STEP_DEFAULTS.items())
    op.execute(f"UPDATE steps SET {values}")  # noqa: S608 - built from the constants above
    with op.batch_alter_table("steps") as steps:
        for name, (kind, _) in STEP_DEFAULTS.items():
            steps.alter_column(name, existing_type=kind, nullable=False)
        steps.add_column(sa.Column("result", sa.LargeBinary(), nullable=True))
        steps.add_column(sa.Column("result_payload", sa.Text(), nullable=True))
        steps.create_foreign_key(
            "fk_steps_result_payload_payloads", "payloads", ["result_payload"], ["hash"]
        )


def extend_runs() -> None:
    op.add_column("runs", sa.Column("attempts", sa.Integer(), nullable=True))
    op.execute("UPDATE runs SET attempts = 1")
    with op.batch_alter_table("runs") as runs:
        runs.alter_column("attempts", existing_type=sa.Integer(), nullable=False)
        runs.add_column(sa.Column("entry", sa.Text(), nullable=True))
        runs.add_column(sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True))
        runs.add_column(sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        for name in ("leased_until", "claimed_at", "entry", "attempts"):
            runs.drop_column(name)
    with op.batch_alter_table("steps") as steps:
        steps.drop_constraint("fk_steps_result_payload_payloads", type_="foreignkey")
        for name in ("result_payload", "result", *STEP_DEFAULTS):
            steps.drop_column(name)
