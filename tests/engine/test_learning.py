"""Predictions that are learned from past runs reach the scheduler of the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agents.deep_research.pipeline import deep_research
from agents.tools.corpus import Corpus
from orchestrator import Runtime, flow, gather, llm, step
from orchestrator.learning.stage_deadlines import LEARNED
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.observers.step_tracker import SloCounts
from serving.generation import GenerationRequest
from serving.requests import RequestView
from serving.slo import Slo, SloKind
from serving.view import Plan, StepView
from store.session import Store, open_store
from tests.unit.agents.deep_research_samples import QUESTION, open_corpus

RUNS = 6


@step
async def section(number: int) -> str:
    return await llm(f"Section {number}", max_tokens=8)


@flow(deadline="5m")
async def paper() -> None:
    await llm("An outline", max_tokens=8)
    await gather(*(section(number) for number in range(3)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


async def test_the_scheduler_sees_learned_deadlines_lengths_and_futures(
    engine: EmbeddedEngine, store: Store
) -> None:
    runtime = Runtime(engine, store)
    for _ in range(RUNS):
        result = await runtime.run(paper)
    assert {stage.source for stage in result.stages} == {LEARNED}
    requests: dict[str, RequestView] = {}

    def watch(view: StepView) -> Plan:
        requests.update({request.request_id: request for request in view.requests})
        return decide(view)

    scheduler = await engine.call(scheduler_of)
    decide = scheduler.planner.policy
    scheduler.planner.policy = watch
    try:
        result = await runtime.run(paper)
    finally:
        scheduler.planner.policy = decide
    outline, *sections = sorted(requests.values(), key=lambda request: request.slo.stage)
    assert len(sections) == 3
    assert outline.slo.future is not None
    assert outline.slo.future.calls == pytest.approx(3)
    assert 0 < outline.slo.future.serial_tokens <= 8  # the three sections run in parallel
    assert outline.slo.deadline_s is not None
    assert outline.slo.deadline_s < 300.0
    for request in sections:
        assert request.slo.stage_calls == 3
        assert request.slo.length is not None
        assert request.remaining_tokens() <= 8
        assert request.slo.future is not None
        assert request.slo.future.calls == 0


async def test_deep_research_learns_to_divide_its_deadline(
    engine: EmbeddedEngine, store: Store, tmp_path: Path
) -> None:
    """After some runs every stage has occurred before, so its sub-deadline is learned."""
    runtime = Runtime(engine, store)
    corpus: Corpus = open_corpus(tmp_path)
    learned = []
    for number in range(RUNS):
        research = deep_research.options(deadline="5m")
        result = await runtime.run(research, f"{QUESTION} ({number})", corpus, rounds=1)
        learned.append({stage.source for stage in result.stages} == {LEARNED})
        due_s = [stage.sub_deadline_s for stage in result.stages]
        assert due_s == sorted(due_s, key=lambda at_s: at_s or 0.0)
    assert not learned[0]
    assert learned[-1]


async def test_an_answer_that_ends_at_a_stop_string_meets_its_slo(engine: EmbeddedEngine) -> None:
    """The engine core gets an abort for it, as for a call that was cancelled."""

    def request(name: str, **changes: Any) -> GenerationRequest:
        slo = Slo(kind=SloKind.COMPOUND, deadline_s=100.0, final_s=100.0, program=name)
        prompt = "The engine read the plan and"
        return GenerationRequest(
            request_id=name, prompt=prompt, max_tokens=30, temperature=0.0, slo=slo, **changes
        )

    def slo_counts(llm: Any) -> SloCounts:
        return (
            scheduler_of(llm)
            .lifecycle.tracker.snapshot()
            .slo_counts.get(SloKind.COMPOUND, SloCounts())
        )

    answer = (await engine.generate(request("all"))).text
    met, missed = await engine.call(slo_counts)
    stop = answer[len(answer) // 2 :][:4]
    stopped = await engine.generate(request("a part", stop=(stop,)))
    assert stopped.finish_reason == "stop"
    assert 0 < stopped.usage.output_tokens < 30
    assert await engine.call(slo_counts) == (met + 1, missed)
