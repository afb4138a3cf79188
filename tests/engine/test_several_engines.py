"""One flow on two real engines: vLLM in this process, and `orchestrate serve` in another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator import (
    BudgetExceeded,
    Runtime,
    Settings,
    best_so_far,
    budget,
    embed,
    flow,
    gather,
    llm,
    open_runtime,
)
from serving.engine.clients.embedded import EmbeddedEngine
from serving.errors import EmbeddingsNotSupported, ModelNotServed, RemoteUnavailable
from store.records import CallRecord
from tests.engine.shared_engine import SharedEngine
from tests.engine.test_server import free_port, kill_if_running, wait_until_healthy
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SERVED = "random"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    command = [sys.executable, "-m", "cli", "serve", "--model", SERVED, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"ORCHESTRATE_SLOTS": "4"})
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(process, url)
        yield process, url
    finally:
        kill_if_running(process)


@pytest.fixture
async def runtime(
    engine: EmbeddedEngine, server: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> AsyncIterator[Runtime]:
    settings = Settings.model_validate(
        {
            "store": f"sqlite:///{tmp_path / 'store.db'}",
            "fit_every": 0,
            "engines": {"judge": {"engine": server[1], "model": SERVED}},
        }
    )
    async with open_runtime(settings, engine=SharedEngine(engine)) as opened:
        yield opened


async def calls_of(runtime: Runtime, run_id: str) -> list[CallRecord]:
    async with runtime.store.reading() as tx:
        return list(await tx.calls.of_run(run_id))


async def test_each_call_is_answered_and_recorded_by_the_engine_that_it_names(
    runtime: Runtime,
) -> None:
    @flow(deadline="2m")
    async def reviewed() -> tuple[str, ...]:
        draft = await llm("write", max_tokens=8)
        return await gather(
            llm(draft, max_tokens=8, engine="judge"),
            llm(draft, max_tokens=8, engine="judge", ttft="2s"),
            llm(draft, max_tokens=8),
        )

    result = await runtime.run(reviewed)
    assert all(result.value)
    calls = await calls_of(runtime, result.run_id)
    assert sorted((call.engine, call.engine_name, call.model) for call in calls) == [
        ("embedded", "", "random"),
        ("embedded", "", "random"),
        ("remote", "judge", "random"),
        ("remote", "judge", "random"),
    ]
    assert all(call.random_weights and call.output_tokens for call in calls)
    info = runtime.engines.info("judge")
    assert (info.name, info.policy, bool(info.scheduler)) == ("remote", "calm", True)


async def test_a_budget_over_both_engines_ends_a_flow_as_a_deadline_does(runtime: Runtime) -> None:
    """The call in progress on the other engine is aborted."""

    @flow
    async def spending() -> int:
        async def ask(engine: str | None) -> None:
            while True:
                await llm("word", max_tokens=8, engine=engine)
                answered.append(engine)
                best_so_far(len(answered))

        answered: list[str | None] = []
        try:
            async with budget(tokens=400) as used:
                await gather(ask(None), ask("judge"), llm("on", max_tokens=2000, engine="judge"))
        except BudgetExceeded:
            assert set(answered) == {None, "judge"}
            return used.tokens
        raise AssertionError("the budget ends the block")

    result = await runtime.run(spending)
    assert result.value >= 400
    calls = await calls_of(runtime, result.run_id)
    answered = [call for call in calls if call.output_tokens is not None]
    assert {call.engine_name for call in answered} == {"", "judge"}
    counted = sum((call.prompt_tokens or 0) + (call.output_tokens or 0) for call in answered)
    assert result.value == counted == result.usage.tokens
    with pytest.raises(BudgetExceeded):
        await runtime.run(flow(name="spent")(spend_nothing))


async def spend_nothing() -> None:
    async with budget(tokens=0):
        await llm("word", engine="judge")


async def test_a_server_of_a_generating_model_serves_no_embeddings_and_no_other_model(
    runtime: Runtime,
) -> None:
    @flow
    async def trying() -> list[str]:
        kinds = []
        for work in (
            lambda: embed(["a"], engine="judge"),
            lambda: llm("a", engine="judge", model="smollm2"),
        ):
            try:
                await work()
            except (EmbeddingsNotSupported, ModelNotServed) as error:
                kinds.append(type(error).__name__)
        return kinds

    assert (await runtime.run(trying)).value == ["EmbeddingsNotSupported", "ModelNotServed"]


async def test_the_end_of_a_server_ends_no_call_of_the_other_engine(
    runtime: Runtime, server: tuple[subprocess.Popen[bytes], str]
) -> None:
    """The last test of this file: the server is gone afterwards."""
    began = asyncio.Event()

    @flow
    async def surviving() -> tuple[str, str]:
        async def on_judge() -> str:
            try:
                return await llm(
                    "on", max_tokens=4000, engine="judge", on_text=lambda _: began.set()
                )
            except RemoteUnavailable as error:
                return type(error).__name__

        async def here() -> str:
            await began.wait()
            server[0].kill()
            return await llm("word", max_tokens=32)

        return await gather(on_judge(), here())

    judged, answer = (await runtime.run(surviving)).value
    assert judged == "RemoteUnavailable"
    assert answer
