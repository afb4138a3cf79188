"""embed: texts as vectors, recorded as a call of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import (
    DeadlineExceeded,
    ResultNotSerialisable,
    Runtime,
    budget,
    embed,
    flow,
    llm,
    within,
)
from orchestrator.execution.embedding_calls import EMBED_STEP
from orchestrator.testing import ScriptedEngine
from serving.errors import EmbeddingsNotSupported
from serving.generation import Completion, EngineInfo, GenerationRequest
from store.records import CallKind, Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import (
    answer_ok,
    law,
    recorded,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime


class OnlyText:
    """An engine that generates text and computes no embeddings, as an embedded one."""

    def __init__(self) -> None:
        self._engine = ScriptedEngine(answer_ok)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def start(self) -> None:
        await self._engine.start()

    def stream(self, request: GenerationRequest) -> Any:
        return self._engine.stream(request)

    async def generate(self, request: GenerationRequest) -> Completion:
        return await self._engine.generate(request)

    async def close(self) -> None:
        await self._engine.close()


@flow
async def embedding(texts: list[str]) -> list[list[float]]:
    return await embed(texts)


async def test_each_text_gets_a_vector_of_its_own_in_one_recorded_call(runtime: Runtime) -> None:
    vectors = (await runtime.run(embedding, ["a", "b", "a"])).value
    assert vectors[0] == vectors[2] != vectors[1]
    assert {len(vector) for vector in vectors} == {8}
    run = await the_run(runtime.store)
    [call] = run.calls
    assert (call.kind, call.identity, call.step_path) == (CallKind.TOOL, "script:embed", "embed")
    assert (call.engine, call.engine_name, call.model) == ("scripted", "", "script")
    assert call.prompt_payload is None


@pytest.mark.parametrize("values", [[0.1, -1e-300, 1 / 3, 5e-324, 1.7976931348623157e308, 3.0]])
async def test_a_resumed_run_gets_exactly_the_same_numbers(
    tmp_path: Path, values: Sequence[float]
) -> None:
    seen: list[list[list[float]]] = []
    fail_once = RaiseOnce()

    @flow
    async def interrupted() -> None:
        seen.append(await embed(["x"]))
        fail_once()

    engine = ScriptedEngine(answer_ok, embedding=lambda text: values)
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        await runtime.resume(ID, interrupted)
    assert seen == [[list(values)]] * 2
    assert engine.embedded == [("x",)]


async def test_no_texts_need_no_call(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine) as runtime:
        assert (await runtime.run(embedding, [])).value == []
        assert not (await the_run(runtime.store)).calls
    assert not engine.embedded


@pytest.mark.parametrize("texts", ["a text", [3], [None], 7, {"a"}])
async def test_what_is_no_list_of_texts_is_refused(runtime: Runtime, texts: Any) -> None:
    @flow
    async def embedding_wrong() -> object:
        return await embed(texts)

    with pytest.raises(ValueError, match="embed"):
        await runtime.run(embedding_wrong)


async def test_an_engine_that_only_generates_text_says_what_to_do(tmp_path: Path) -> None:
    @flow
    async def embedding_by_default() -> None:
        await embed(["a"])

    async with scripted_runtime(tmp_path, OnlyText()) as runtime:  # type: ignore[arg-type]
        with pytest.raises(EmbeddingsNotSupported, match="computes no embeddings: name a server"):
            await runtime.run(embedding_by_default)
        [call] = (await the_run(runtime.store)).calls
    assert (call.status, call.error_type) == (Status.FAILED, "EmbeddingsNotSupported")


async def test_a_named_engine_computes_them(tmp_path: Path) -> None:
    vectors = ScriptedEngine(answer_ok, embedding=lambda text: [len(text)], model="vectors")
    runtime = Runtime(OnlyText(), await opened(tmp_path), engines={"vectors": vectors})

    @flow
    async def both() -> list[list[float]]:
        await llm("hello")
        return [*await embed(["ab"], engine="vectors"), *await embed(["abc"], model="vectors")]

    async with runtime.store:
        result = await runtime.run(both)
        run = await recorded(runtime.store, result.run_id)
    assert result.value == [[2.0], [3.0]]
    assert [call.identity for call in run.calls] == [
        "script:both",
        "vectors:embed",
        "vectors:embed",
    ]


async def opened(folder: Path) -> Any:
    from store.session import open_store

    return await open_store(f"sqlite:///{folder / 'store.db'}")


@in_virtual_time
async def test_a_deadline_ends_a_call_of_embed(tmp_path: Path) -> None:
    slow = ScriptedEngine(answer_ok, token_s=3600)

    @flow
    async def limited() -> None:
        async with within("20ms"):
            await embed(["a"])

    async with timed_runtime(tmp_path, slow) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(limited)
        [call] = (await the_run(runtime.store)).calls
    assert call.status is Status.CANCELLED


async def test_embed_spends_no_budget_of_llm_calls(runtime: Runtime) -> None:
    @flow
    async def within_budget() -> int:
        async with budget(calls=1) as used:
            await embed(["a"])
            await embed(["b"])
            await llm("c")
            return used.calls

    assert (await runtime.run(within_budget)).value == 1


async def test_a_vector_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, embedding=lambda text: [math.nan])
    async with scripted_runtime(tmp_path, engine) as runtime:
        with pytest.raises(ResultNotSerialisable, match="not finite"):
            await runtime.run(embedding, ["a"])


@law
@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5), max_size=5))
def test_every_finite_number_is_read_back_unchanged(vectors: list[list[float]]) -> None:
    written, returned = EMBED_STEP.codec.round_trip(vectors)
    assert repr(EMBED_STEP.codec.load(written)) == repr(returned) == repr(vectors)
