"""Records of a run that come from another one are added as they are."""

from __future__ import annotations

import pytest

from store.errors import StoreError
from store.records import CallKind, EdgeRecord, MatchRecord, Status, StepKind
from store.session import Store
from tests.unit.store.store_samples import a_call, a_run, a_stage, a_step


async def test_records_are_read_as_they_were_added(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        payload = await tx.payloads.put(b"a long result")
        steps = [
            a_step("ask", kind=StepKind.INPUT, answer_schema={"type": "string"}, stops_clock=True),
            a_step("plan", status=Status.FAILED, finished_s=2.0, outcome_number=3, ended_run=True),
            a_step("write", status=Status.COMPLETED, result_payload=payload, arguments=b"digest"),
        ]
        calls = [
            a_call(2, kind=CallKind.TOOL, status=Status.COMPLETED, finished_s=1.0),
            a_call(5, prompt_payload=payload, prompt_tokens=7),
        ]
        edges = [EdgeRecord("run-1", 2, 5)]
        stages = [a_stage(0), a_stage(1, matches=(MatchRecord(3, None, 0.5),))]
        await tx.journal.add_all(steps)
        await tx.calls.add_all(calls, edges)
        await tx.stages.add_all(stages)
    async with store.reading() as tx:
        assert list(await tx.journal.of_run("run-1")) == steps
        assert list(await tx.calls.of_run("run-1")) == calls
        assert list(await tx.calls.edges_of_run("run-1")) == edges
        assert list(await tx.stages.of_run("run-1")) == stages


async def test_nothing_is_added_of_a_run_without_records(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.add_all([])
        await tx.calls.add_all([], [])
        await tx.stages.add_all([])
        assert not await tx.journal.of_run("run-1")


@pytest.mark.parametrize("changes", [{"run_id": "unknown"}, {"result_payload": "0" * 64}])
async def test_records_of_an_unknown_run_or_payload_are_refused(
    store: Store, changes: dict[str, str]
) -> None:
    async def add() -> None:
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            await tx.journal.add_all([a_step(**changes)])

    with pytest.raises(StoreError):
        await add()
    async with store.reading() as tx:
        assert not await tx.runs.newest()
