"""The tables. Their rows never leave this package: repositories return records."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from store.database.column_types import FreeText, UtcDateTime, enum_column
from store.records import CallKind, Effects, Encoding, Status, StepKind
from store.state_records import EdgeKind, Revertibility

_HASH = "payloads.hash"


def _where(condition: str) -> dict[str, Any]:
    """The condition of a partial index. A query uses it only if it has the same literals."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Base(DeclarativeBase):
    """The base of all tables; it names every constraint, so that migrations can drop it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy declares it without ClassVar
        str: FreeText(),
        datetime: UtcDateTime(),
        Status: enum_column(Status),
        CallKind: enum_column(CallKind),
        Encoding: enum_column(Encoding),
        StepKind: enum_column(StepKind),
        Effects: enum_column(Effects),
        EdgeKind: enum_column(EdgeKind),
        Revertibility: enum_column(Revertibility),
    }


class Payload(Base):
    """Bytes and their hash; the same bytes are stored in one row only."""

    __tablename__ = "payloads"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    size: Mapped[int] = mapped_column(BigInteger)
    media_type: Mapped[str]
    encoding: Mapped[Encoding]
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Run(Base):
    """See RunRecord."""

    __tablename__ = "runs"
    __table_args__ = (
        Index(None, "started_at", "id"),
        Index(None, "flow", "started_at", "id"),
        Index(
            "ix_runs_queued",
            "queue",
            "rank",
            "due_at",
            "started_at",
            "id",
            **_where("status = 'queued'"),
        ),
        Index(
            "ix_runs_in_progress",
            "queue",
            "leased_until",
            **_where("status = 'running' AND queue IS NOT NULL"),
        ),
        Index(
            "ix_runs_dedup_key",
            "queue",
            "dedup_key",
            unique=True,
            **_where("dedup_key IS NOT NULL AND status IN ('queued', 'running')"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    flow: Mapped[str]
    status: Mapped[Status]
    deadline_s: Mapped[float | None]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    elapsed_s: Mapped[float | None]
    error_type: Mapped[str | None]
    error_message: Mapped[str | None]
    engine: Mapped[str]
    model: Mapped[str]
    policy: Mapped[str]
    random_weights: Mapped[bool]
    process_id: Mapped[int] = mapped_column(BigInteger)
    host: Mapped[str]
    process: Mapped[str | None]
    attributes: Mapped[dict[str, Any]] = mapped_column(JSON)
    input_payload: Mapped[str | None] = mapped_column(ForeignKey(_HASH))
    result_payload: Mapped[str | None] = mapped_column(ForeignKey(_HASH))
    attempts: Mapped[int]
    entry: Mapped[str | None]
    claimed_at: Mapped[datetime | None]
    leased_until: Mapped[datetime | None]
    slo_user: Mapped[str] = mapped_column(server_default=text("''"))
    cancel_requested_at: Mapped[datetime | None]
    clock_stopped_s: Mapped[float] = mapped_column(server_default=text("0"))
    queue: Mapped[str | None]
    rank: Mapped[int] = mapped_column(server_default=text("0"))
    due_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    dedup_key: Mapped[str | None]
    failed_attempts: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("1"))
    retry_s: Mapped[float | None]
    code_version: Mapped[str | None]


class Queue(Base):
    """See QueueRecord."""

    __tablename__ = "queues"

    name: Mapped[str] = mapped_column(primary_key=True)
    max_running: Mapped[int | None]
    max_running_of_user: Mapped[int | None]
    is_paused: Mapped[bool] = mapped_column(server_default=false())
    is_draining: Mapped[bool] = mapped_column(server_default=false())


class Schedule(Base):
    """See ScheduleRecord."""

    __tablename__ = "schedules"

    name: Mapped[str] = mapped_column(primary_key=True)
    cron: Mapped[str]
    timezone: Mapped[str]
    next_at: Mapped[datetime] = mapped_column(index=True)
    is_paused: Mapped[bool] = mapped_column(server_default=false())
    flow: Mapped[str]
    entry: Mapped[str | None]
    arguments: Mapped[bytes] = mapped_column(LargeBinary)
    queue: Mapped[str]
    rank: Mapped[int]
    deadline_s: Mapped[float | None]
    max_attempts: Mapped[int]
    retry_s: Mapped[float | None]
    slo_user: Mapped[str]
    tags: Mapped[dict[str, Any]] = mapped_column(JSON)


class Step(Base):
    """See StepRecord."""

    __tablename__ = "steps"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    status: Mapped[Status]
    started_s: Mapped[float]
    finished_s: Mapped[float | None]
    error_type: Mapped[str | None]
    error_message: Mapped[str | None]
    kind: Mapped[StepKind]
    place: Mapped[int]
    effects: Mapped[Effects]
    attempts: Mapped[int]
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    result_payload: Mapped[str | None] = mapped_column(ForeignKey(_HASH))
    reuse_key: Mapped[bytes | None] = mapped_column(LargeBinary)
    arguments: Mapped[bytes | None] = mapped_column(LargeBinary)
    ended_run: Mapped[bool] = mapped_column(server_default=false())
    outcome_number: Mapped[int | None]
    answer_schema: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    stops_clock: Mapped[bool] = mapped_column(server_default=false())
    workspace: Mapped[str | None]
    state_before: Mapped[str | None]
    state_after: Mapped[str | None]

    __table_args__ = (
        Index(
            "ix_steps_reuse_key",
            reuse_key,
            sqlite_where=reuse_key.is_not(None),
            postgresql_where=reuse_key.is_not(None),
        ),
    )


class Call(Base):
    """See CallRecord."""

    __tablename__ = "calls"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[CallKind]
    identity: Mapped[str]
    step_path: Mapped[str]
    stage: Mapped[int]
    status: Mapped[Status]
    started_s: Mapped[float]
    finished_s: Mapped[float | None]
    sub_deadline_s: Mapped[float | None]
    deadline_source: Mapped[str | None]
    prompt_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    ttft_s: Mapped[float | None]
    finish_reason: Mapped[str | None]
    error_type: Mapped[str | None]
    error_message: Mapped[str | None]
    prompt_payload: Mapped[str | None] = mapped_column(ForeignKey(_HASH))
    output_payload: Mapped[str | None] = mapped_column(ForeignKey(_HASH))
    features: Mapped[bytes | None] = mapped_column(LargeBinary)
    length_bound: Mapped[float | None]
    bound_source: Mapped[str | None]
    engine: Mapped[str | None]
    engine_name: Mapped[str | None]
    model: Mapped[str | None]
    random_weights: Mapped[bool] = mapped_column(server_default=false())


class Edge(Base):
    """See EdgeRecord."""

    __tablename__ = "edges"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "parent"], ["calls.run_id", "calls.node"]),
        ForeignKeyConstraint(["run_id", "child"], ["calls.run_id", "calls.node"]),
        CheckConstraint("parent <> child", name="no_loop"),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    parent: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    child: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Pattern(Base):
    """See PatternRecord."""

    __tablename__ = "patterns"
    __table_args__ = (
        Index(None, "application", "id"),
        Index(None, "application", "weight", "id"),
        # Other tables refer to patterns by id: the id of a deleted pattern must not be reused.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), unique=True)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    codec_version: Mapped[int]
    weight: Mapped[float]
    created_at: Mapped[datetime]
    uses: Mapped[float]
    used_at: Mapped[datetime]
    is_cut_off: Mapped[bool] = mapped_column(server_default=false())


class Fit(Base):
    """See FitRecord. `last_pattern_id` is no foreign key, because that pattern may be deleted."""

    __tablename__ = "fits"

    application: Mapped[str] = mapped_column(primary_key=True)
    fitted_at: Mapped[datetime]
    last_pattern_id: Mapped[int]
    num_patterns: Mapped[int]
    kernel: Mapped[dict[str, Any]] = mapped_column(JSON)


class Stage(Base):
    """See StageRecord; `matches` is a list of MatchRecords as JSON objects."""

    __tablename__ = "stages"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    began_s: Mapped[float]
    sub_deadline_s: Mapped[float | None]
    source: Mapped[str]
    share: Mapped[float | None]
    spread: Mapped[float | None]
    num_candidates: Mapped[int]
    num_matches: Mapped[int]
    matches: Mapped[list[dict[str, Any]]] = mapped_column(JSON)


class State(Base):
    """See StateRecord.

    Columns that name a state are no foreign keys: to delete a state would take a scan of all steps.
    The counter `uses` stands for them (store/state_uses.py).
    """

    __tablename__ = "states"

    id: Mapped[str] = mapped_column(primary_key=True)
    base: Mapped[str]
    base_identity: Mapped[str]
    files: Mapped[str]
    manifest: Mapped[str]
    shell: Mapped[str]
    num_entries: Mapped[int]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    uses: Mapped[int]
    unused_since: Mapped[datetime | None]


class StateEdge(Base):
    """See StateEdgeRecord."""

    __tablename__ = "state_edges"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[EdgeKind]
    before: Mapped[str]
    after: Mapped[str]
    attribute: Mapped[Revertibility]
    seconds: Mapped[float]
    changed: Mapped[list[str]] = mapped_column(JSON)
    num_changed: Mapped[int]
    num_added: Mapped[int]
    num_removed: Mapped[int]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    reads: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    note: Mapped[str | None]


class Checkpoint(Base):
    """See CheckpointRecord."""

    __tablename__ = "checkpoints"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    workspace: Mapped[str]
    state: Mapped[str]
    at_s: Mapped[float]
