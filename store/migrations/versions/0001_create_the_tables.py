"""Create the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_payloads()
    create_runs()
    create_calls()
    create_patterns()
    create_steps()
    create_edges()


def create_payloads() -> None:
    op.create_table(
        "payloads",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("encoding", sa.String(length=16), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_payloads"),
    )


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("flow", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("deadline_s", sa.Double(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("random_weights", sa.Boolean(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("input_payload", sa.Text(), nullable=True),
        sa.Column("result_payload", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["input_payload"], ["payloads.hash"], name="fk_runs_input_payload_payloads"
        ),
        sa.ForeignKeyConstraint(
            ["result_payload"], ["payloads.hash"], name="fk_runs_result_payload_payloads"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_started_at_id", "runs", ["started_at", "id"])


def create_calls() -> None:
    op.create_table(
        "calls",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("step_path", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=False),
        sa.Column("finished_s", sa.Double(), nullable=True),
        sa.Column("sub_deadline_s", sa.Double(), nullable=True),
        sa.Column("deadline_source", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("prompt_payload", sa.Text(), nullable=True),
        sa.Column("output_payload", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["output_payload"], ["payloads.hash"], name="fk_calls_output_payload_payloads"
        ),
        sa.ForeignKeyConstraint(
            ["prompt_payload"], ["payloads.hash"], name="fk_calls_prompt_payload_payloads"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_calls_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "node", name="pk_calls"),
    )


def create_patterns() -> None:
    op.create_table(
        "patterns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("codec_version", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_patterns_run_id_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_patterns"),
        sa.UniqueConstraint("run_id", name="uq_patterns_run_id"),
    )
    op.create_index("ix_patterns_application_id", "patterns", ["application", "id"])


def create_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=False),
        sa.Column("finished_s", sa.Double(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_steps_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "path", name="pk_steps"),
    )


def create_edges() -> None:
    op.create_table(
        "edges",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("parent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("child", sa.Integer(), autoincrement=False, nullable=False),
        # op.f: otherwise the naming convention would add its prefix to this name again.
        sa.CheckConstraint("parent <> child", name=op.f("ck_edges_no_loop")),
        sa.ForeignKeyConstraint(
            ["run_id", "child"], ["calls.run_id", "calls.node"], name="fk_edges_run_id_child_calls"
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "parent"],
            ["calls.run_id", "calls.node"],
            name="fk_edges_run_id_parent_calls",
        ),
        sa.PrimaryKeyConstraint("run_id", "parent", "child", name="pk_edges"),
    )


def downgrade() -> None:
    op.drop_table("edges")
    op.drop_table("steps")
    op.drop_table("patterns")
    op.drop_table("calls")
    op.drop_table("runs")
    op.drop_table("payloads")
