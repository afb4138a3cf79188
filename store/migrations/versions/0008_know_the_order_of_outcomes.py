"""Number the outcomes of a run's steps, so that a resumed run replays them in their order.

SQLite files get the application id of this program.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

APPLICATION_ID = 0x6F726368  # "orch" in ASCII

NUMBER_RESUMABLE = """
UPDATE steps SET outcome_number = ranked.number FROM (
    SELECT steps.run_id AS run_id, steps.path AS path,
           row_number() OVER (
               PARTITION BY steps.run_id ORDER BY steps.finished_s, steps.started_s, steps.path
           ) - 1 AS number
    FROM steps JOIN runs ON runs.id = steps.run_id
    WHERE runs.status <> 'completed' AND steps.kind <> 'value'
      AND steps.status IN ('completed', 'failed')
) AS ranked
WHERE steps.run_id = ranked.run_id AND steps.path = ranked.path
"""


def upgrade() -> None:
    op.add_column("steps", sa.Column("outcome_number", sa.Integer(), nullable=True))
    op.execute(NUMBER_RESUMABLE)
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def downgrade() -> None:
    op.drop_column("steps", "outcome_number")
