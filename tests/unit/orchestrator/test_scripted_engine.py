"""The scripted engine and the virtual clock behave like a real engine and clock."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.testing import ScriptedEngine, VirtualClock
from serving.errors import EngineClosed, RequestDropped
from serving.generation import Chunk, Engine, GenerationRequest
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, answer_ok, until_generating


def a_request(number: int = 0, **changes: Any) -> GenerationRequest:
    return GenerationRequest(request_id=f"r-{number}", prompt="how is it?", **changes)


@given(text=st.text(max_size=40), limit=st.none() | st.integers(1, 20))
def test_an_answer_streams_word_by_word_up_to_the_limit(text: str, limit: int | None) -> None:
    engine: Engine = ScriptedEngine(lambda _request: text)

    async def chunks() -> list[Chunk]:
        return [chunk async for chunk in engine.stream(a_request(max_tokens=limit))]

    received = asyncio.run(chunks())
    completion = received[-1].completion
    assert completion is not None
    assert all(chunk.completion is None for chunk in received[:-1])
    assert "".join(chunk.text for chunk in received) == completion.text
    is_cut = limit is not None and limit < text.count(" ") + 1
    assert completion.finish_reason == ("length" if is_cut else "stop")
    assert text.startswith(completion.text) if is_cut else text == completion.text
    assert completion.usage.output_tokens == len(received)
    assert completion.usage.prompt_tokens == 3


async def test_closing_the_engine_ends_running_and_later_requests_at_once() -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    waiting = asyncio.create_task(engine.generate(a_request()))
    await until_generating(engine)
    await engine.close()
    with pytest.raises(EngineClosed):
        await waiting
    assert (engine.num_running, engine.aborted) == (0, [])
    for late in (engine.start(), engine.generate(a_request(1))):
        with pytest.raises(EngineClosed):
            await late


async def test_leaving_a_stream_aborts_its_request() -> None:
    engine = ScriptedEngine(answer_ok)
    stream = cast("Any", engine.stream(a_request(7)))
    async with aclosing(stream):
        await anext(stream)
        assert engine.num_running == 1
    assert (engine.num_running, engine.aborted) == (0, ["r-7"])


async def test_an_error_of_the_script_is_raised_and_is_not_an_abort() -> None:
    def script(request: GenerationRequest) -> str:
        raise RequestDropped(request.request_id, "late")

    engine = ScriptedEngine(script)
    with pytest.raises(RequestDropped):
        await engine.generate(a_request())
    assert (engine.num_running, engine.aborted) == (0, [])


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_a_virtual_clock_moves_only_by_advance_and_both_its_times_agree(
    advances: list[float],
) -> None:
    clock = VirtualClock()
    began = clock.wall()
    for seconds in advances:
        before_s = clock.now_s()
        clock.advance(seconds)
        assert clock.now_s() == before_s + seconds
    assert (clock.wall() - began).total_seconds() == pytest.approx(clock.now_s(), abs=1e-5)
    assert began.utcoffset() is not None
