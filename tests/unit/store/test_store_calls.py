"""Calls and the dependencies between them."""

from __future__ import annotations

import pytest

from store.errors import AlreadyRecorded, NotStarted, PayloadMissing, RunNotFound
from store.records import CallKind, CallOutcome, EdgeRecord, Status
from store.session import Store
from tests.unit.store.store_samples import a_call, a_run


async def test_a_call_is_read_as_it_was_recorded(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        prompt, answer = await tx.payloads.put(b"prompt"), await tx.payloads.put(b"answer")
        started = {
            "stage": 2,
            "sub_deadline_s": 7.5,
            "deadline_source": "fallback",
            "prompt_tokens": 11,
            "prompt_payload": prompt,
            "features": b"\x00\xff known",
            "length_bound": 312.5,
            "bound_source": "forest",
        }
        await tx.calls.start(a_call(**started))
        outcome = CallOutcome(
            status=Status.COMPLETED,
            finished_s=3.5,
            output_tokens=5,
            cached_tokens=0,
            ttft_s=0.0625,
            finish_reason="stop",
            output_payload=answer,
        )
        await tx.calls.finish("run-1", 0, outcome)
    async with store.reading() as tx:
        [call] = await tx.calls.of_run("run-1")
    assert call == a_call(
        **started,
        status=Status.COMPLETED,
        finished_s=3.5,
        output_tokens=5,
        cached_tokens=0,
        ttft_s=0.0625,
        finish_reason="stop",
        output_payload=answer,
    )


async def test_calls_and_edges_are_read_in_order(store: Store) -> None:
    async with store.transaction() as tx:
        for run_id in ("run-1", "run-2"):
            await tx.runs.add(a_run(run_id))
            await tx.calls.start(a_call(0, run_id=run_id))
        await tx.calls.start(a_call(1, kind=CallKind.TOOL, identity="search"), parents=[0])
        await tx.calls.start(a_call(10))
        await tx.calls.start(a_call(2), parents=(10, 1, 0, 1))
    async with store.reading() as tx:
        assert [call.node for call in await tx.calls.of_run("run-1")] == [0, 1, 2, 10]
        edges = [EdgeRecord("run-1", *pair) for pair in [(0, 1), (0, 2), (1, 2), (10, 2)]]
        assert list(await tx.calls.edges_of_run("run-1")) == edges
        assert list(await tx.calls.edges_of_run("run-2")) == []
        assert list(await tx.calls.of_run("unknown")) == []


async def test_a_call_with_an_unrecorded_parent_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.calls.start(a_call(0))
        with pytest.raises(NotStarted, match="call 7"):
            await tx.calls.start(a_call(1), parents=[0, 7, 8])
        assert [call.node for call in await tx.calls.of_run("run-1")] == [0]


async def test_a_second_call_with_the_same_node_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.calls.start(a_call(identity="first"))
        with pytest.raises(AlreadyRecorded):
            await tx.calls.start(a_call(identity="second"))
        assert [call.identity for call in await tx.calls.of_run("run-1")] == ["first"]


async def test_the_outcome_of_a_call_is_never_overwritten(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.calls.start(a_call())
        await tx.calls.finish("run-1", 0, CallOutcome(Status.CANCELLED, 1.0))
        with pytest.raises(AlreadyRecorded):
            await tx.calls.finish("run-1", 0, CallOutcome(Status.COMPLETED, 2.0))
        assert [call.status for call in await tx.calls.of_run("run-1")] == [Status.CANCELLED]


async def test_a_call_can_refer_only_to_stored_runs_and_payloads(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        with pytest.raises(RunNotFound):
            await tx.calls.start(a_call(run_id="unknown"))
        with pytest.raises(PayloadMissing):
            await tx.calls.start(a_call(prompt_payload="feed"))
        with pytest.raises(NotStarted):
            await tx.calls.finish("run-1", 0, CallOutcome(Status.COMPLETED, 1.0))
        await tx.calls.start(a_call())
        with pytest.raises(PayloadMissing):
            await tx.calls.finish(
                "run-1", 0, CallOutcome(Status.COMPLETED, 1.0, output_payload="feed")
            )
