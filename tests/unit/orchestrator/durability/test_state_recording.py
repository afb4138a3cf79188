"""What a step did to its workspace is recorded with its outcome, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import RunClock
from orchestrator.durability.identity import StepPath
from orchestrator.durability.recorder import RunRecorder
from orchestrator.durability.replay import RecordedSteps
from orchestrator.testing import VirtualClock
from store.errors import StateNotFound
from store.records import Effects, Status, StepKind, StepRecord
from store.session import Store, open_store
from store.state_records import StateChange
from tests.unit.store.state_samples import (
    a_checkpoint,
    a_state,
    an_action,
    an_edge,
    state_id,
)
from tests.unit.store.store_samples import a_call, a_run

RUN = "run-1"


def an_edit(before: str = "a", after: str = "b", **changes: Any) -> StateChange:
    """What the step `edit` did; letters stand for states, of which the second is new."""
    parts: dict[str, Any] = {
        "state_after": state_id(after),
        "states": [a_state(after)],
        "edges": [an_edge(before, after)],
        "checkpoint": a_checkpoint(after),
    }
    return StateChange(**parts | changes)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        async with opened.transaction() as tx:
            await tx.runs.add(a_run(RUN))
            await tx.states.add(a_state("a"))
        yield opened


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def recorder(store: Store, clock: VirtualClock) -> RunRecorder:
    return RunRecorder(
        store, RunClock(clock), run_id=RUN, started_s=0.0, durable=True, record_text=False
    )


async def of_run(store: Store) -> tuple[StepRecord, int, int]:
    """The only step of the run, and how many edges and checkpoints it has; counters are right."""
    async with store.reading() as tx:
        assert await tx.states.recount() == []
        [step] = await tx.journal.of_run(RUN)
        edges = await tx.states.edges_of_run(RUN)
        return step, len(edges), len(await tx.states.checkpoints_of_run(RUN))


@pytest.mark.parametrize("error", [None, ValueError("no"), asyncio.CancelledError()])
async def test_however_a_step_ends_its_change_is_recorded(
    store: Store, recorder: RunRecorder, error: BaseException | None
) -> None:
    step = an_action("a")
    await recorder.step_started(step)
    await recorder.step_ended(step, error, result=b"null", environment=an_edit())
    ended, num_edges, num_checkpoints = await of_run(store)
    assert ended.status is not Status.RUNNING
    assert (ended.state_before, ended.state_after) == (state_id("a"), state_id("b"))
    assert (num_edges, num_checkpoints) == (1, 1)


async def test_the_change_of_a_tool_call_is_recorded_with_its_outcome(
    store: Store, recorder: RunRecorder
) -> None:
    step = an_action("a")
    call = a_call(0, step_path="edit")
    await recorder.call_started(call, step=step, began_before=False, parents=())
    await recorder.call_ended(0, step, error=None, result=b"1", environment=an_edit())
    ended, num_edges, _ = await of_run(store)
    assert (ended.status, ended.state_after, num_edges) == (Status.COMPLETED, state_id("b"), 1)


async def test_a_change_that_cannot_be_recorded_leaves_no_outcome(
    store: Store, recorder: RunRecorder
) -> None:
    """Else the journal would say that the step is done, and its files were nowhere."""
    step = an_action("a")
    await recorder.step_started(step)
    with pytest.raises(StateNotFound):
        await recorder.step_ended(step, None, environment=an_edit(states=[]))
    left, num_edges, num_checkpoints = await of_run(store)
    assert (left.status, left.state_after) == (Status.RUNNING, None)
    assert (num_edges, num_checkpoints) == (0, 0)


async def test_a_change_of_another_step_is_a_bug(store: Store, recorder: RunRecorder) -> None:
    step = an_action("a")
    await recorder.step_started(step)
    for other in (
        an_edit(edges=[an_edge(path="other")]),
        an_edit(checkpoint=a_checkpoint(path="other")),
    ):
        with pytest.raises(AssertionError):
            await recorder.step_ended(step, None, environment=other)


async def test_a_step_that_is_done_again_replaces_its_change(
    store: Store, recorder: RunRecorder, clock: VirtualClock
) -> None:
    step = an_action("a")
    await recorder.step_started(step)
    await recorder.step_ended(step, asyncio.CancelledError(), environment=an_edit())
    clock.advance(60)
    await recorder.step_started(step, began_before=True)
    async with store.reading() as tx:
        assert (await tx.states.get(state_id("b"))).unused_since == clock.wall()
    await recorder.step_ended(step, None, environment=an_edit("a", "c"))
    ended, num_edges, num_checkpoints = await of_run(store)
    assert (ended.state_after, num_edges, num_checkpoints) == (state_id("c"), 1, 1)


async def test_a_forgotten_step_releases_its_states_at_the_time_of_the_runs_clock(
    store: Store, recorder: RunRecorder, clock: VirtualClock
) -> None:
    step = an_action("a")
    await recorder.step_started(step)
    await recorder.step_ended(step, None, environment=an_edit())
    clock.advance(5)
    recorder.writer.forget(["edit"])
    await recorder.step_started(an_action("a", "other"))
    async with store.reading() as tx:
        assert (await tx.states.get(state_id("b"))).unused_since == clock.wall()
        assert await tx.states.recount() == []


async def test_a_replayed_step_has_its_workspace_and_states(
    store: Store, recorder: RunRecorder
) -> None:
    step = an_action("a", "edit", kind=StepKind.TOOL, effects=Effects.ENV)
    await recorder.step_started(step)
    await recorder.step_ended(step, None, result=b"1", environment=an_edit())
    async with store.reading() as tx:
        steps = RecordedSteps(RUN, await tx.journal.of_run(RUN))
    found = steps.find(StepPath().enter("edit"), StepKind.TOOL)
    assert found is not None
    assert (found.workspace, found.state_before, found.state_after) == (
        "ws",
        state_id("a"),
        state_id("b"),
    )
