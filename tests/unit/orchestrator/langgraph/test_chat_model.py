"""ChatOrchestrate: the LangChain chat model on our engines, within a run and outside one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import ValidationError

from orchestrator import Message, RunEnded, WouldBlock, flow, gather, step
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph.event_loops import loop_for_sync_call, run_on_loop
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest
from serving.generation import Token
from serving.slo import SloKind
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    recorded,
    scripted_runtime,
    the_run,
    until_generating,
)


async def test_a_call_in_a_flow_is_recorded_with_its_causal_parents_and_its_sub_deadline(
    tmp_path: Path,
) -> None:
    engine, model = ScriptedEngine(answer_ok), ChatOrchestrate()

    @step
    async def ask(what: str) -> str:
        return str((await model.ainvoke(what)).text)

    @flow(deadline="60s")
    async def research() -> str:
        plan = await ask("plan")
        await gather(ask(f"a {plan}"), ask(f"b {plan}"))
        return await ask("sum up")

    async with scripted_runtime(tmp_path, engine) as runtime:
        assert await research() == "all is well"
        record = await the_run(runtime.store)
    assert record.edges == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert {call.identity for call in record.calls} == {"script:ask"}
    assert {request.slo.kind for request in engine.requests} == {SloKind.COMPOUND}
    assert {request.slo.program for request in engine.requests} == {record.run.id}
    assert record.still_running() == []


async def test_a_call_outside_a_run_is_best_effort_and_is_not_recorded(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine) as runtime:
        message = await ChatOrchestrate(max_tokens=2).ainvoke("how is it?")
        async with runtime.store.reading() as tx:
            assert await tx.runs.newest() == []
    assert message.text == "all is"
    [request] = engine.requests
    assert request.slo.kind is SloKind.BEST_EFFORT
    assert (request.max_tokens, request.temperature) == (2, 0.7)


async def test_an_answer_has_its_token_usage_and_response_metadata(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path):
        message = await ChatOrchestrate(max_tokens=2).ainvoke("how is it?")
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == 3
    assert message.usage_metadata["output_tokens"] == 2
    assert message.usage_metadata["total_tokens"] == 5
    metadata = message.response_metadata
    assert (metadata["finish_reason"], metadata["model_name"]) == ("length", "script")
    assert "random_weights" not in metadata


@pytest.mark.parametrize("is_sync", [False, True])
async def test_an_answer_streams_word_by_word_and_ends_with_usage_and_metadata(
    tmp_path: Path, is_sync: bool
) -> None:
    model = ChatOrchestrate()

    @flow
    async def talk() -> int:
        chunks: list[AIMessageChunk] = []
        if is_sync:
            chunks = await asyncio.to_thread(lambda: list(model.stream("hello")))
        else:
            chunks = [chunk async for chunk in model.astream("hello")]
        texts = [chunk.text for chunk in chunks if chunk.text]
        assert texts == ["all", " is", " well"]
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole = whole + chunk
        assert whole.usage_metadata is not None
        assert whole.usage_metadata["output_tokens"] == 3
        assert whole.response_metadata["finish_reason"] == "stop"
        return len(texts)

    async with scripted_runtime(tmp_path) as runtime:
        assert await talk() == 3
        record = await the_run(runtime.store)
    assert [call.output_tokens for call in record.calls] == [3]


async def test_leaving_a_stream_aborts_its_request(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "on and on and on", token_s=0.01)
    async with scripted_runtime(tmp_path, engine):
        async for chunk in ChatOrchestrate().astream("hello"):
            if chunk.text:
                break
        async with asyncio.timeout(10):
            while not engine.aborted:  # noqa: ASYNC110 - it has no event to wait for
                await asyncio.sleep(0.001)
        assert engine.num_running == 0


@pytest.mark.parametrize("in_flow", [False, True])
async def test_the_model_can_be_called_from_a_thread(tmp_path: Path, in_flow: bool) -> None:
    model = ChatOrchestrate()

    async def talk() -> str:
        return str((await asyncio.to_thread(model.invoke, "hello")).text)

    async with scripted_runtime(tmp_path) as runtime:
        assert await (flow(talk)() if in_flow else talk()) == "all is well"
        async with runtime.store.reading() as tx:
            runs = await tx.runs.newest()
            calls = [call for run in runs for call in await tx.calls.of_run(run.id)]
    assert [call.status for call in calls] == [Status.COMPLETED] * in_flow


async def test_the_model_can_be_called_from_another_event_loop(tmp_path: Path) -> None:
    @flow
    async def talk() -> str:
        message = await asyncio.to_thread(lambda: asyncio.run(ChatOrchestrate().ainvoke("hello")))
        return str(message.text)

    async with scripted_runtime(tmp_path) as runtime:
        assert await talk() == "all is well"
        assert len((await the_run(runtime.store)).calls) == 1


async def test_a_synchronous_call_on_the_runtimes_event_loop_raises_would_block(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path):
        with pytest.raises(WouldBlock, match="ainvoke"):
            ChatOrchestrate().invoke("hello")


async def test_a_call_from_a_thread_is_aborted_at_the_deadline_of_its_run(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            ChatOrchestrate().invoke("hello")
        except BaseException as error:
            raised.append(error)

    @flow(deadline=0.3)
    async def talk() -> None:
        await asyncio.to_thread(ask)

    async with scripted_runtime(tmp_path, engine):
        with pytest.raises(TimeoutError):
            await talk()
        async with asyncio.timeout(10):
            while not raised:  # noqa: ASYNC110 - it has no event to wait for
                await asyncio.sleep(0.001)
    assert isinstance(raised[0], TimeoutError | RunEnded)
    assert engine.num_running == 0


async def test_cancelling_a_call_aborts_its_request(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine):
        call = asyncio.create_task(ChatOrchestrate().ainvoke("hello"))
        await until_generating(engine)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(engine.aborted) == 1


async def test_stop_texts_and_sampling_parameters_reach_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    model = ChatOrchestrate(temperature=0.0, top_p=0.5, seed=3)

    @flow
    async def talk() -> None:
        await model.ainvoke("hello", stop=["\n"], max_tokens=7)

    async with scripted_runtime(tmp_path, engine):
        await talk()
    [request] = engine.requests
    assert (request.temperature, request.top_p, request.seed) == (0.0, 0.5, 3)
    assert (request.stop, request.max_tokens) == (("\n",), 7)


TOKENS = (Token("So", -0.5, (("So", -0.5), ("No", -1.0))), Token(".", -0.25))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_has_the_log_probabilities_of_its_tokens(
    tmp_path: Path, streamed: bool
) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(lambda _: TOKENS)):
        model = ChatOrchestrate(logprobs=True).bind(top_logprobs=1)
        if streamed:
            chunks = [chunk async for chunk in model.astream("hi")]
            reply: Any = reduce(add, chunks[1:], chunks[0])
        else:
            reply = await model.ainvoke("hi")
        plain = await ChatOrchestrate().ainvoke("hi")
    assert reply.text == "So."
    assert reply.response_metadata["logprobs"]["content"] == [
        {"token": "So", "logprob": -0.5, "top_logprobs": [{"token": "So", "logprob": -0.5}]},
        {"token": ".", "logprob": -0.25, "top_logprobs": []},
    ]
    assert "logprobs" not in plain.response_metadata


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"top_logprobs": 2}, "needs logprobs=True"),
        ({"logprobs": 2}, "must be true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
    ],
)
async def test_log_probabilities_that_cannot_be_are_refused(
    tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    async with scripted_runtime(tmp_path):
        with pytest.raises(InvalidRequest, match=reason):
            await ChatOrchestrate().ainvoke("hi", **arguments)


def test_an_unknown_argument_of_the_model_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_token\n"):
        ChatOrchestrate(max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("unknown", ["max_token", "response_format"])
async def test_an_unknown_argument_of_a_call_is_refused(tmp_path: Path, unknown: str) -> None:
    arguments: dict[str, Any] = {unknown: 3}
    engine, model = ScriptedEngine(answer_ok), ChatOrchestrate()
    async with scripted_runtime(tmp_path, engine):
        for asked in model.ainvoke("hi", **arguments), model.bind(**arguments).ainvoke("hi"):
            with pytest.raises(InvalidRequest, match=f"{unknown}; it accepts .*max_tokens"):
                await asked
        with pytest.raises(InvalidRequest, match=unknown):
            async for _ in model.astream("hi", **arguments):
                pass
    with pytest.raises(InvalidRequest, match=unknown):
        model.bind_tools([], **arguments)
    assert not engine.requests


async def test_messages_become_alternating_turns(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    call = {"name": "weather", "args": {"city": "Bern"}, "id": "1"}
    messages = [
        SystemMessage("be brief"),
        HumanMessage("weather?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("rain", name="weather", tool_call_id="1"),
        HumanMessage([{"type": "text", "text": "so?"}]),
    ]
    async with scripted_runtime(tmp_path, engine):
        await ChatOrchestrate().ainvoke(messages)
    assert engine.requests[0].prompt == (
        Message("system", "be brief"),
        Message("user", "weather?"),
        Message("assistant", '{"tool": "weather", "arguments": {"city": "Bern"}}'),
        Message("user", "Result of weather:\nrain\n\nso?"),
    )


async def test_a_message_that_is_not_text_raises_invalid_request(tmp_path: Path) -> None:
    picture = HumanMessage([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])
    async with scripted_runtime(tmp_path):
        with pytest.raises(InvalidRequest, match="image_url"):
            await ChatOrchestrate().ainvoke([picture])


async def test_each_prompt_of_a_batch_is_a_call_of_the_run(tmp_path: Path) -> None:
    @flow
    async def talk() -> int:
        return len(await ChatOrchestrate().abatch(["a", "b", "c"]))

    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(talk)
        assert result.value == 3
        assert len((await recorded(runtime.store, result.run_id)).calls) == 3


def test_concurrent_synchronous_calls_share_one_event_loop() -> None:
    with loop_for_sync_call() as first:
        with loop_for_sync_call() as second:
            assert second is first
        assert run_on_loop(first, "adding", lambda: asyncio.sleep(0, result=3)) == 3
        assert first.is_running()
    assert first.is_closed()
    with loop_for_sync_call() as third:
        assert third is not first


@pytest.mark.usefixtures("subprocesses")
def test_importing_the_sdk_does_not_import_langchain() -> None:
    script = "import sys, orchestrator; print([m for m in sys.modules if m.startswith('lang')])"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("in_flow", [True, False])
async def test_the_model_may_name_an_engine_of_the_runtime(tmp_path: Path, in_flow: bool) -> None:
    default, judge = ScriptedEngine(answer_ok), ScriptedEngine(lambda _: "no", model="large")
    models = [ChatOrchestrate(engine="judge"), ChatOrchestrate(model="large"), ChatOrchestrate()]

    async def ask() -> list[tuple[str, str]]:
        answers = [await model.ainvoke("is it?") for model in models]
        return [(str(each.text), each.response_metadata["model_name"]) for each in answers]

    async with scripted_runtime(tmp_path, default, engines={"judge": judge}):
        answers = await flow(ask)() if in_flow else await ask()
    assert answers == [("no", "large"), ("no", "large"), ("all is well", "script")]
