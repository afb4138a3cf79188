"""The counters of states agree with the rows that name them, whatever has happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from store.errors import AlreadyRecorded, NotStarted
from store.models import Run
from store.records import Effects, Status, StepOutcome
from store.session import Store, open_store
from store.state_records import EdgeKind
from store.unit_of_work import Transaction
from tests.strategies import examples
from tests.unit.store.retention_samples import DAY, NEW, NOW, OLD, remove
from tests.unit.store.state_samples import (
    a_checkpoint,
    a_state,
    an_action,
    an_edge,
    state_id,
)
from tests.unit.store.store_places import DATABASES, fresh_store_url
from tests.unit.store.store_samples import a_run

RUNS, PATHS, LETTERS = ("run-1", "run-2"), ("plan", "edit"), "abc"


class Operation(NamedTuple):
    """One thing that happens to the states of a step; states are letters."""

    what: str
    run_id: str = "run-1"
    path: str = "plan"
    before: str = "a"
    after: str = "b"
    status: Status = Status.COMPLETED


WHAT = ("start", "finish", "start_again", "forget", "edge", "checkpoint", "remove_run", "collect")

operations = st.builds(
    Operation,
    st.sampled_from(WHAT),
    st.sampled_from(RUNS),
    st.sampled_from(PATHS),
    st.sampled_from(LETTERS),
    st.sampled_from(LETTERS),
    st.sampled_from([status for status in Status if status is not Status.RUNNING]),
)


async def perform(store: Store, operation: Operation) -> None:
    """Perform it in a transaction of its own, which the store may refuse."""
    if operation.what == "remove_run":
        ended = {"status": operation.status, "finished_at": OLD}
        async with store._writer.begin() as connection:
            await connection.execute(update(Run).where(Run.id == operation.run_id).values(**ended))
        await remove(store)
    async with store.transaction() as tx:
        if operation.what == "collect":
            await tx.states.remove(await tx.states.all_ids())
        await begin(tx)
        await of_step(tx, operation)


async def of_step(tx: Transaction, operation: Operation) -> None:
    what, run_id, path, before, after, status = operation
    effects = Effects.EXTERNAL if path == "edit" else Effects.ENV
    step = an_action(before, path, run_id=run_id, effects=effects)
    match what:
        case "start":
            await tx.journal.start(step)
        case "finish":
            outcome = StepOutcome(status, 1.0, state_after=state_id(after))
            await tx.journal.finish(run_id, path, outcome)
        case "start_again":
            unless = Status.COMPLETED if status is Status.COMPLETED else None
            await tx.journal.start_again(step, at=NEW, unless=unless)
        case "forget":
            await tx.journal.forget(run_id, [path], at=NEW)
        case "edge":
            edge = an_edge(before, after, run_id=run_id, path=path, kind=EdgeKind.MERGE)
            await tx.states.add_edges([edge])
        case "checkpoint":
            await tx.states.add_checkpoint(a_checkpoint(after, run_id=run_id, path=path))


async def begin(tx: Transaction) -> None:
    """Add the runs and states that are not stored."""
    stored = {run.id for run in await tx.runs.newest()}
    for run_id in RUNS:
        if run_id not in stored:
            await tx.runs.add(a_run(run_id))
    for letter in LETTERS:
        await tx.states.add(a_state(letter))


async def named(tx: Transaction) -> Counter[str]:
    """State id -> how often the records of all runs name it, counted here."""
    names: Counter[str | None] = Counter()
    for run in await tx.runs.newest():
        for step in await tx.journal.of_run(run.id):
            names.update([step.state_before, step.state_after])
        for edge in await tx.states.edges_of_run(run.id):
            names.update([edge.before, edge.after])
        names.update(each.state for each in await tx.states.checkpoints_of_run(run.id))
    return Counter({state: num for state, num in names.items() if state is not None})


async def check_law(store: Store, performed: Sequence[Operation]) -> None:
    async with store.transaction() as tx:
        await begin(tx)
    for operation in performed:
        try:
            await perform(store, operation)
        except (AlreadyRecorded, NotStarted):
            continue
    async with store.reading() as tx:
        assert await tx.states.recount(fix=False) == []
        expected = await named(tx)
        for each in await tx.states.all_ids():
            state = await tx.states.get(each)
            assert state.uses == expected.pop(each, 0)
            assert (state.unused_since is None) == (state.uses > 0)
        assert not expected


async def empty(store: Store) -> None:
    """Remove all runs, then all states."""
    async with store._writer.begin() as connection:
        await connection.execute(update(Run).values(status=Status.FAILED, finished_at=OLD))
    await remove(store)
    async with store.transaction() as tx:
        ids = await tx.states.all_ids()
        assert {each.id for each in await tx.states.unused(NOW + DAY)} == set(ids)
        assert set(await tx.states.remove(ids)) == set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_the_counters_agree_with_the_rows_after_whatever_happened(
    database: str, tmp_path: Path
) -> None:
    with fresh_store_url(database, tmp_path) as url, asyncio.Runner() as runner:
        store = runner.run(open_store(url))

        @given(performed=st.lists(operations, max_size=25))
        @settings(max_examples=examples(60), deadline=None)
        @example(performed=[Operation(what) for what in WHAT])
        @example(performed=[Operation(what, path="edit") for what in ("start", "edge", "forget")])
        def law(performed: list[Operation]) -> None:
            runner.run(check_law(store, performed))
            runner.run(empty(store))

        law()
        runner.run(store.close())
