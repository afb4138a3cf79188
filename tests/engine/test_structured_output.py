"""Schemas that would take the engine's time or memory, with the embedded engine and the demo model.

A trial in another process compiles each schema before vLLM does (tests/unit has its own tests).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator import Runtime, flow, llm
from serving.engine.clients.embedded import EmbeddedEngine
from serving.errors import InvalidRequest
from serving.generation import GenerationRequest
from store.session import open_store

WAIT_S = 30
LARGE = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
SLOW = {"type": "integer", "multipleOf": 400_009}
ENUM = {"enum": [f"value {number}" for number in range(100_000)]}
SMALL = {"type": "string", "maxLength": 5}


def call(schema: Mapping[str, Any], request_id: str = "mine") -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id, prompt="Name a book.", max_tokens=20, schema=schema
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (LARGE, "minItems is 100,000,000; the limit is 10,000"),
        (ENUM, "more than 10,000 values"),
        (SLOW, "takes more than 0.5 s"),
    ],
    ids=["large", "enum", "slow"],
)
async def test_a_schema_that_is_large_or_slow_to_compile_raises_invalid_request(
    engine: EmbeddedEngine, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        await engine.generate(call(schema))
    assert caught.value.args[0] == "mine"
    assert (await engine.generate(call(SMALL))).parsed() is not None


async def test_llm_with_a_schema_beyond_a_bound_raises_invalid_request(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    @flow
    async def ask() -> Any:
        return await llm("Name a book.", schema=LARGE)

    async with await open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        with pytest.raises(InvalidRequest, match="minItems"):
            await Runtime(engine, store).run(ask)


async def test_other_requests_are_answered_while_a_schema_is_tried(engine: EmbeddedEngine) -> None:
    await engine.generate(call(SMALL))  # the process for trials has started
    schema = {"type": "integer", "multipleOf": 400_031}
    slow = asyncio.create_task(engine.generate(call(schema, "slow")))
    other = GenerationRequest(request_id="other", prompt="Name a book.", max_tokens=1)
    await engine.generate(other)
    assert not slow.done()
    with pytest.raises(InvalidRequest):
        await slow


async def test_a_cancelled_call_ends_the_trial_of_its_schema(engine: EmbeddedEngine) -> None:
    await engine.generate(call(SMALL))
    schema = {"type": "integer", "multipleOf": 400_033}
    slow = asyncio.create_task(engine.generate(call(schema)))
    async with asyncio.timeout(WAIT_S):
        while not (trials := trials_running()):  # noqa: ASYNC110 (processes have no event)
            await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    _, left = await asyncio.to_thread(psutil.wait_procs, trials, WAIT_S)
    assert left == []


def trials_running() -> list[psutil.Process]:
    """The processes that compile a schema: children of the one that has the tokenizer."""
    return [
        trial
        for process in psutil.Process().children()
        if "serving.engine.structured_output.trial" in process.cmdline()
        for trial in process.children()
    ]


async def test_vllm_validates_a_schema_that_was_tried_without_compiling_it(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its validation runs on the engine's thread, which all requests share."""
    backend: Any = importlib.import_module("vllm.v1.structured_output.backend_guidance")
    serialized: list[Any] = []
    serialize = backend.serialize_guidance_grammar

    def counting(*arguments: Any) -> str:
        serialized.append(arguments)
        grammar: str = serialize(*arguments)
        return grammar

    monkeypatch.setattr(backend, "serialize_guidance_grammar", counting)
    await engine.generate(call(SMALL))
    assert len(serialized) == 1, "by the backend, in a thread of its own"
