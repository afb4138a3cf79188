"""Runs that changed files, in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from store.records import Effects, RunRecord, Status, StepOutcome, StepRecord
from store.session import open_store
from store.state_records import (
    CheckpointRecord,
    EdgeKind,
    Revertibility,
    StateChange,
    StateEdgeRecord,
    StateRecord,
)
from tests.cli.cli_samples import NOON, a_run, fill_store

RUN = "3f2a9c1b77de"


def state_id(name: str) -> str:
    return blake3(name.encode()).hexdigest()


def a_state(name: str, base: str = "/home/ada/repo") -> StateRecord:
    digest = state_id(name)
    return StateRecord(
        digest, base, "base", f"files of {name}", "manifest", "", 3, 1_000, created_at=NOON
    )


def an_edge(path: str, before: str, after: str, *, number: int = 0, **changes: Any) -> Any:
    """An edge between named states; an action of 1.2 s that changed 4 files, if they differ."""
    numbers = {"num_changed": 4, "num_added": 3} if before != after else {}
    fields: dict[str, Any] = {"kind": EdgeKind.ACTION, "seconds": 1.2, **numbers}
    return StateEdgeRecord(
        RUN, path, number, before=state_id(before), after=state_id(after), **{**fields, **changes}
    )


def opened(state: str, base: str = "/home/ada/repo") -> StateChange:
    """A workspace is opened in a state."""
    return StateChange(state_after=state_id(state), states=[a_state(state, base)])


def acted(
    path: str, before: str, after: str, checkpoint: str | None = None, **changes: Any
) -> StateChange:
    """A step led from one state to another."""
    marked = CheckpointRecord(RUN, path, checkpoint or "", "repo", state_id(after), at_s=1.0)
    return StateChange(
        state_after=state_id(after),
        states=[a_state(after)],
        edges=[an_edge(path, before, after, **changes)],
        checkpoint=None if checkpoint is None else marked,
    )


Done = tuple[str, str, StateChange]
"""A step: its path, its workspace, and what it did there."""


def exploration() -> list[Done]:
    """Three attempts in forks; one is adopted, one goes on after a rewind; at the end a message."""
    rewind = {"kind": EdgeKind.REWIND, "num_changed": 0, "seconds": 0.002}
    kept = {"kind": EdgeKind.CHECKPOINT}
    external = {"attribute": Revertibility.EXTERNAL, "seconds": 0.3}
    not_revertible = {"attribute": Revertibility.NOT_REVERTIBLE}
    removed = {"num_changed": 1_300, "num_added": 0, "num_removed": 1_200}
    return [
        ("workspace", "repo", opened("start")),
        ("checkpoint", "repo", acted("checkpoint", "start", "start", "start", **kept)),
        ("fork", "repo", acted("fork", "start", "start", kind=EdgeKind.FORK)),
        ("attempt[0]/edit", "repo.1", acted("attempt[0]/edit", "start", "one")),
        ("attempt[1]/edit", "repo.2", acted("attempt[1]/edit", "start", "two", **removed)),
        ("attempt[0]/run tests", "repo.1", acted("attempt[0]/run tests", "one", "one")),
        ("attempt[2]/edit", "repo.3", acted("attempt[2]/edit", "start", "three", **not_revertible)),
        ("attempt[1]/rewind", "repo.2", acted("attempt[1]/rewind", "two", "start", **rewind)),
        ("attempt[1]/edit#2", "repo.2", acted("attempt[1]/edit#2", "start", "two b")),
        ("adopt", "repo", acted("adopt", "start", "one", "tests pass", kind=EdgeKind.ADOPT)),
        ("tell", "repo", acted("tell", "one", "one", **external)),
        ("polish", "repo", acted("polish", "one", "end")),
    ]  # fmt: skip


def fill_states(url: str, done: Sequence[Done], run: RunRecord | None = None) -> None:
    """Record a run with these steps, one after another."""
    fill_store(url, [run or a_run(RUN)])
    add_steps(url, done)


def add_steps(url: str, done: Sequence[Done]) -> None:
    """Record these steps of a run that is recorded, one after another."""

    async def add() -> None:
        async with await open_store(url) as store, store.transaction() as tx:
            for number, (path, workspace, change) in enumerate(done):
                step = StepRecord(
                    RUN,
                    path,
                    path.rpartition("/")[2],
                    float(number),
                    effects=Effects.ENV,
                    workspace=workspace,
                    state_before=change.edges[0].before if change.edges else None,
                )
                await tx.journal.start(step)
                outcome = StepOutcome(
                    Status.COMPLETED,
                    number + 0.5,
                    outcome_number=number,
                    state_after=change.state_after,
                )
                await tx.journal.finish(RUN, path, outcome)
                await tx.states.record(change)

    asyncio.run(add())
