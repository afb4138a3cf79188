"""Sample records for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from store.records import (
    CallKind,
    CallRecord,
    FitRecord,
    PatternRecord,
    RunRecord,
    StageRecord,
    StepRecord,
)

NOON = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)


def a_run(run_id: str = "run-1", **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {"id": run_id, "flow": "research", "started_at": NOON}
    return RunRecord(**fields | changes)


def a_full_run(run_id: str = "run-1", **changes: Any) -> RunRecord:
    """A run in which most optional fields are set."""
    fields: dict[str, Any] = {
        "deadline_s": 60.25,
        "started_at": NOON.astimezone(timezone(timedelta(hours=9))),
        "engine": "vllm",
        "model": "demo",
        "policy": "calm",
        "random_weights": True,
        "process_id": 2**40,
        "host": "grüße.example",
        "attributes": {"question": "why?", "depth": [1, 2.5, None, {"deep": True}]},
    }
    return a_run(run_id, **fields | changes)


def a_step(path: str = "plan", **changes: Any) -> StepRecord:
    fields: dict[str, Any] = {"run_id": "run-1", "path": path, "name": path, "started_s": 0.125}
    return StepRecord(**fields | changes)


def a_call(node: int = 0, **changes: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "node": node,
        "kind": CallKind.LLM,
        "identity": "demo/plan",
        "step_path": "plan",
        "stage": 0,
        "started_s": 0.25,
    }
    return CallRecord(**fields | changes)


def a_pattern(**changes: Any) -> PatternRecord:
    fields: dict[str, Any] = {
        "application": "research",
        "document": b"\x00\xff pattern",
        "codec_version": 1,
        "created_at": NOON,
    }
    return PatternRecord(**fields | changes)


def a_fit(application: str = "research", **changes: Any) -> FitRecord:
    fields: dict[str, Any] = {
        "application": application,
        "fitted_at": NOON,
        "last_pattern_id": 7,
        "num_patterns": 5,
        "kernel": {"bandwidths": [0.5, 2.0], "nodes": {"llm": 1}},
    }
    return FitRecord(**fields | changes)


def a_stage(stage: int = 0, **changes: Any) -> StageRecord:
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "stage": stage,
        "began_s": 0.5,
        "sub_deadline_s": 7.5,
        "source": "fallback",
    }
    return StageRecord(**fields | changes)
