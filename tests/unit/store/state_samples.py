"""Sample states, and steps that change them."""

from __future__ import annotations

from typing import Any

from store.records import Effects, Status, StepKind, StepOutcome, StepRecord
from store.state_records import (
    CheckpointRecord,
    EdgeKind,
    StateChange,
    StateEdgeRecord,
    StateRecord,
)
from store.unit_of_work import Transaction
from tests.unit.store.store_samples import NOON, a_step


def state_id(letter: str) -> str:
    """The id of a state, which begins with this letter."""
    return letter * 64


def a_state(letter: str = "a", **changes: Any) -> StateRecord:
    fields: dict[str, Any] = {
        "id": state_id(letter),
        "base": "/home/grüße/repo",
        "base_identity": "b" * 64,
        "files": "f" * 64,
        "manifest": "m" * 64,
        "shell": "",
        "num_entries": 3,
        "num_bytes": 2**40,
        "created_at": NOON,
    }
    return StateRecord(**fields | changes)


def an_edge(before: str = "a", after: str = "b", **changes: Any) -> StateEdgeRecord:
    """An edge between the states with these letters."""
    fields: dict[str, Any] = {"run_id": "run-1", "path": "edit", "number": 0}
    return StateEdgeRecord(
        **{
            **fields,
            "kind": EdgeKind.ACTION,
            "before": state_id(before),
            "after": state_id(after),
            **changes,
        }
    )


def a_checkpoint(state: str = "b", **changes: Any) -> CheckpointRecord:
    """A checkpoint of the state with this letter."""
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "path": "edit",
        "name": "start",
        "workspace": "ws",
        "state": state_id(state),
        "at_s": 1.5,
    }
    return CheckpointRecord(**fields | changes)


def an_action(before: str, path: str = "edit", **changes: Any) -> StepRecord:
    """A step that changes the workspace, which it found in the state with this letter."""
    fields = {"kind": StepKind.TOOL, "effects": Effects.ENV, "workspace": "ws"}
    return a_step(path, **{**fields, "state_before": state_id(before), **changes})


async def act(
    tx: Transaction, before: str, after: str, *, run_id: str = "run-1", path: str = "edit"
) -> None:
    """Record an action of a workspace, with a checkpoint after it; the state after may be new."""
    await tx.journal.start(an_action(before, path, run_id=run_id))
    outcome = StepOutcome(Status.COMPLETED, 1.0, state_after=state_id(after))
    await tx.journal.finish(run_id, path, outcome)
    await tx.states.record(
        StateChange(
            states=[a_state(after)],
            edges=[an_edge(before, after, run_id=run_id, path=path)],
            checkpoint=a_checkpoint(after, run_id=run_id, path=path),
        )
    )
