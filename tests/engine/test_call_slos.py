"""What a call asks for itself, on the real engine: SLO targets, a waiting time, images."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator import DeadlineExceeded, Image, Message, Runtime, embed, flow, gather, llm
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.errors import EmbeddingsNotSupported, InvalidRequest, RequestDropped
from serving.requests import RequestView
from serving.slo import Slo, SloKind
from serving.view import Plan, StepView
from store.records import Status
from store.session import Store, open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


async def test_the_scheduler_sees_the_targets_of_each_call(
    engine: EmbeddedEngine, store: Store
) -> None:
    @flow(deadline="5m")
    async def asking() -> list[str]:
        return [
            await llm("a", max_tokens=4, ttft="500ms", tbt="50ms"),
            await llm("b", max_tokens=4, deadline="1m"),
            await llm("c", max_tokens=4, waiting_time="90s"),
        ]

    requests: dict[str, RequestView] = {}

    def watch(view: StepView) -> Plan:
        requests.update({request.request_id: request for request in view.requests})
        return decide(view)

    scheduler = await engine.call(scheduler_of)
    decide = scheduler.planner.policy
    scheduler.planner.policy = watch
    try:
        result = await Runtime(engine, store).run(asking.options(user="alice"))
    finally:
        scheduler.planner.policy = decide
    stream, limited, patient = (request.slo for request in requests.values())
    assert stream == Slo(
        kind=SloKind.LATENCY,
        ttft_s=stream.ttft_s,
        tbt_s=0.05,
        waiting_s=5.0,
        on_late=stream.on_late,
        program=result.run_id,
        length=stream.length,
        user="alice",
    )
    assert 0 < stream.ttft_s <= 0.5  # less the time that the prompt took to be tokenized
    assert limited.kind is SloKind.COMPOUND
    assert limited.program.startswith(f"{result.run_id}+")
    assert limited.final_s is not None
    assert limited.final_s <= 60
    assert (patient.kind, patient.waiting_s) == (SloKind.COMPOUND, 90.0)
    assert patient.program == result.run_id


async def test_a_call_that_waits_for_longer_than_it_allows_is_dropped(
    engine: EmbeddedEngine, store: Store
) -> None:
    """Eight calls take all slots of the engine."""
    began: set[int] = set()
    all_began = asyncio.Event()

    async def occupy(number: int) -> None:
        def on_text(_: str) -> None:
            began.add(number)
            if len(began) == 8:
                all_began.set()

        await llm(f"{number}", max_tokens=200, on_text=on_text)

    async def late() -> str:
        await all_began.wait()
        try:
            return await llm("late", max_tokens=4, waiting_time="1ms")
        except RequestDropped as dropped:
            return str(dropped)

    @flow
    async def crowded() -> str:
        *_, last = await gather(*(occupy(number) for number in range(8)), late())
        return str(last)

    message = (await Runtime(engine, store).run(crowded)).value
    assert "slo_waiting_s is 0.001" in message


async def test_a_stream_ends_at_the_deadline_of_its_run(
    engine: EmbeddedEngine, store: Store
) -> None:
    @flow(deadline="300ms")
    async def endless() -> str:
        return await llm("on and on", ttft=1, tbt=1)

    with pytest.raises(DeadlineExceeded):
        await Runtime(engine, store).run(endless)
    assert await engine.call(lambda llm_engine: len(scheduler_of(llm_engine).requests)) == 0


async def test_an_embedded_engine_refuses_images_and_embeddings_and_says_what_to_do(
    engine: EmbeddedEngine, store: Store
) -> None:
    @flow
    async def describing() -> list[str]:
        reasons = []
        try:
            await llm([Message("user", ("What is this?", Image("https://here/a.png")))])
        except InvalidRequest as error:
            reasons.append(str(error))
        try:
            await embed(["a"])
        except EmbeddingsNotSupported as error:
            reasons.append(str(error))
        return [*reasons, await llm([{"role": "user", "content": ["a", "b"]}], max_tokens=4)]

    runtime = Runtime(engine, store)
    result = await runtime.run(describing)
    images, embeddings, _ = result.value
    assert "an embedded engine reads no images: name a server" in images
    assert "engine embedded with model 'random' computes no embeddings" in embeddings
    async with store.reading() as tx:
        calls = await tx.calls.of_run(result.run_id)
    assert [call.status for call in calls] == [Status.FAILED, Status.FAILED, Status.COMPLETED]
