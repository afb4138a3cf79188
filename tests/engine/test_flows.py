"""Flows of the SDK on the real engine, with a store in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from orchestrator import Answer, BudgetExceeded, Runtime, budget, flow, gather, llm, step
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.requests import RequestView
from serving.slo import SloKind
from serving.view import Plan, StepView
from store.records import Status
from store.session import Store, open_store


class Outline(BaseModel):
    title: str = Field(min_length=1, max_length=24)
    urgent: bool


@step
async def paragraph(title: str, number: int) -> str:
    return await llm(f"Paragraph {number} of {title}", max_tokens=8)


@flow(deadline="5m", stages=2)
async def article(topic: str) -> tuple[Outline, tuple[str, ...]]:
    outline = await llm(f"Outline {topic}", schema=Outline, max_tokens=120)
    return outline, await gather(*(paragraph(outline.title, number) for number in range(3)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


async def test_ten_concurrent_flows_complete_on_one_engine(
    engine: EmbeddedEngine, store: Store
) -> None:
    runtime = Runtime(engine, store)
    results = await asyncio.gather(*(runtime.run(article, f"topic {n}") for n in range(10)))
    assert len({result.run_id for result in results}) == 10
    for result in results:
        outline, paragraphs = result.value
        assert isinstance(outline, Outline)
        assert len(paragraphs) == 3
        assert [len(stage.calls) for stage in result.stages] == [1, 3]
    async with store.reading() as tx:
        runs = await tx.runs.newest()
        assert [run.status for run in runs] == [Status.COMPLETED] * 10
        calls = [call for run in runs for call in await tx.calls.of_run(run.id)]
        assert await tx.patterns.count_by_application() == {"article": 10}
    assert len(calls) == 40
    assert all(call.status is Status.COMPLETED and call.output_tokens for call in calls)


async def test_the_scheduler_sees_the_stage_and_run_deadlines_of_each_call(
    engine: EmbeddedEngine, store: Store
) -> None:
    requests: dict[str, RequestView] = {}

    def watch(view: StepView) -> Plan:
        requests.update({request.request_id: request for request in view.requests})
        return decide(view)

    scheduler = await engine.call(scheduler_of)
    decide = scheduler.planner.policy
    scheduler.planner.policy = watch
    try:
        result = await Runtime(engine, store).run(article, "deadlines")
    finally:
        scheduler.planner.policy = decide
    slos = [request.slo for request in requests.values()]
    assert len(slos) == 4
    assert {slo.kind for slo in slos} == {SloKind.COMPOUND}
    assert {slo.program for slo in slos} == {result.run_id}
    assert sorted((slo.stage, slo.stage_calls) for slo in slos) == [(0, 1), (1, 3), (1, 3), (1, 3)]
    for slo in slos:
        assert slo.deadline_s is not None
        assert slo.final_s is not None
        assert slo.deadline_s <= slo.final_s <= 300


async def test_a_cancelled_run_leaves_no_request_in_the_engine(
    engine: EmbeddedEngine, store: Store
) -> None:
    started = asyncio.Event()

    @flow
    async def endless() -> None:
        await gather(*(llm("on and on", on_text=lambda _: started.set()) for _ in range(4)))

    running = asyncio.create_task(Runtime(engine, store).run(endless))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await engine.call(lambda llm_engine: len(scheduler_of(llm_engine).requests)) == 0
    async with store.reading() as tx:
        [run] = await tx.runs.newest()
        assert run.status is Status.CANCELLED
        calls = await tx.calls.of_run(run.id)
        assert {call.status for call in calls} == {Status.CANCELLED}


async def test_several_answers_differ_and_share_the_prompt_s_kv_cache(
    engine: EmbeddedEngine, store: Store
) -> None:
    prompt = "Go on with the story. " * 40

    @flow
    async def asking() -> list[str]:
        return await llm(prompt, n=3, temperature=1.0, seed=5, max_tokens=12)

    runtime = Runtime(engine, store)
    result = await runtime.run(asking)
    assert len(set(result.value)) == 3
    async with store.reading() as tx:
        calls = await tx.calls.of_run(result.run_id)
    assert len(calls) == 3
    [prompt_tokens] = {call.prompt_tokens or 0 for call in calls}
    computed = sum(prompt_tokens - (call.cached_tokens or 0) for call in calls)
    assert prompt_tokens <= computed < 2 * prompt_tokens
    assert (await runtime.run(asking)).value == result.value


async def test_an_answer_has_the_log_probabilities_of_its_tokens(
    engine: EmbeddedEngine, store: Store
) -> None:
    @flow
    async def asking() -> Answer[Outline]:
        return await llm("Outline tides", schema=Outline, max_tokens=120, logprobs=2)

    answer = (await Runtime(engine, store).run(asking)).value
    assert answer.value == Outline.model_validate_json(answer.text)
    assert "".join(token.text for token in answer.tokens).startswith(answer.text)
    assert -20 < answer.mean_logprob < 0


async def test_a_spent_budget_aborts_the_calls_of_its_block_in_the_engine(
    engine: EmbeddedEngine, store: Store
) -> None:
    @flow
    async def spender() -> str:
        try:
            async with budget(calls=2):
                await gather(*(llm(f"Story {n}", max_tokens=1500) for n in range(3)))
        except BudgetExceeded:
            return await llm("The end.", max_tokens=4)
        return "never"

    result = await Runtime(engine, store).run(spender)
    async with store.reading() as tx:
        calls = await tx.calls.of_run(result.run_id)
    assert [call.status for call in calls] == [
        Status.CANCELLED,
        Status.CANCELLED,
        Status.COMPLETED,
    ]
    assert (result.usage.calls, result.usage.output_tokens) == (1, 4)
    assert result.usage.prompt_tokens > 0
