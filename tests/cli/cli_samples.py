"""Shared by the tests of the commands: running a command, sample records, scripted answers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from cli.main import main
from serving.generation import GenerationRequest
from store.records import CallKind, CallRecord, RunRecord, Status, StepRecord
from store.session import open_store

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
HOST = socket.gethostname()


def exit_code(*arguments: str) -> int:
    """Run a command line in this process; its exit code."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    return int(exited.value.code or 0)


def a_run(run_id: str = "3f2a9c1b77de", **changes: Any) -> RunRecord:
    """A completed run that met its deadline of 60 s, with some fields changed."""
    defaults: dict[str, Any] = {
        "id": run_id,
        "flow": "deep-research",
        "started_at": NOON,
        "status": Status.COMPLETED,
        "deadline_s": 60.0,
        "finished_at": NOON,
        "elapsed_s": 41.2,
        "engine": "embedded",
        "model": "demo",
        "policy": "edf",
        "process_id": 1,
        "host": HOST,
    }
    return RunRecord(**defaults | changes)


def a_call(node: int, stage: int, name: str, **changes: Any) -> CallRecord:
    """A completed LLM call of the step `name`; with kind=TOOL, a call of that tool."""
    kind = changes.get("kind", CallKind.LLM)
    defaults: dict[str, Any] = {
        "run_id": "3f2a9c1b77de",
        "node": node,
        "kind": kind,
        "identity": f"demo:{name}" if kind is CallKind.LLM else name,
        "step_path": name,
        "stage": stage,
        "started_s": 0.0,
        "finished_s": 1.0,
        "status": Status.COMPLETED,
        "output_tokens": 120 if kind is CallKind.LLM else None,
    }
    return CallRecord(**defaults | changes)


def research_calls() -> list[CallRecord]:
    """Calls of four stages, for a deadline of 60 s; the third is late, the last has not ended."""
    tool = {"kind": CallKind.TOOL, "sub_deadline_s": 15.0}
    return [
        a_call(0, 0, "plan", started_s=0.1, finished_s=4.2, sub_deadline_s=7.5),
        a_call(1, 1, "search", started_s=4.2, finished_s=4.3, **tool),
        a_call(2, 1, "search", started_s=4.2, finished_s=4.4, **tool),
        a_call(3, 2, "read", started_s=4.5, finished_s=16.0, sub_deadline_s=15.5),
        a_call(4, 2, "read", started_s=4.5, finished_s=20.5, sub_deadline_s=15.5),
        a_call(
            5,
            3,
            "write",
            started_s=20.6,
            finished_s=None,
            sub_deadline_s=60.0,
            status=Status.RUNNING,
            output_tokens=None,
        ),
    ]


def fill_store(
    url: str,
    runs: Iterable[RunRecord],
    calls: Iterable[CallRecord] = (),
    steps: Iterable[StepRecord] = (),
) -> None:
    """Add runs, then their calls and steps, to a store."""

    async def fill() -> None:
        async with await open_store(url) as store, store.transaction() as tx:
            for run in runs:
                await tx.runs.add(run)
            for call in calls:
                await tx.calls.start(call)
            for step in steps:
                await tx.journal.start(step)

    asyncio.run(fill())


def recorded_runs(url: str) -> list[RunRecord]:
    """The runs in a store, newest first."""

    async def read() -> list[RunRecord]:
        async with await open_store(url) as store, store.reading() as tx:
            return list(await tx.runs.newest())

    return asyncio.run(read())


def answer_by_schema(request: GenerationRequest) -> str:
    """The shortest answer that satisfies a request's schema; "word" without a schema."""
    return "word" if request.schema is None else json.dumps(smallest(request.schema))


def smallest(schema: Mapping[str, Any]) -> Any:
    """The smallest value that satisfies a schema; knows only the types that our pipelines use."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: smallest(part) for name, part in schema["properties"].items()}
        case "array":
            return [smallest(schema["items"])] * schema.get("minItems", 0)
        case "boolean":
            return True
        case "integer":
            return schema.get("minimum", 0)
        case _:
            return "x" * schema.get("minLength", 1)
