"""model_info: the run's model, recorded, so that a resumed run asks it in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import ModelInfo, OutsideRun, flow, llm, model_info
from orchestrator.testing import ScriptedEngine
from serving.errors import EngineDied
from serving.generation import EngineInfo, GenerationRequest
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


class Sized(ScriptedEngine):
    """An engine whose model has a size, known once it has started."""

    def __init__(self, parameters: int, *, dies: bool = False) -> None:
        super().__init__(self._die if dies else lambda _: "hello")
        self._parameters = parameters

    def _die(self, request: GenerationRequest) -> str:
        raise EngineDied("out of memory")

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, parameters=self._parameters if self.num_starts else None)


@flow
async def asks_by_size(fail: bool = False) -> int | None:
    model = await model_info()
    await llm("hello")
    return model.parameters


async def test_outside_a_flow_it_raises_outside_run() -> None:
    with pytest.raises(OutsideRun, match=r"model_info\(\)"):
        await model_info()


async def test_it_is_what_the_started_engine_says(tmp_path: Path) -> None:
    engine = Sized(7)
    seen: list[ModelInfo] = []

    @flow
    async def body() -> None:
        seen.append(await model_info())

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(body)
    info = engine.info
    assert seen == [ModelInfo(info.model, 7, info.max_model_tokens, info.random_weights)]


async def test_a_resumed_run_has_the_model_info_of_its_first_execution(tmp_path: Path) -> None:
    run = asks_by_size.options(run_id="the-run")
    with pytest.raises(EngineDied):
        async with scripted_runtime(tmp_path, Sized(7, dies=True)) as runtime:
            await runtime.run(run)
    async with scripted_runtime(tmp_path, Sized(8)) as runtime:
        assert (await runtime.resume("the-run", asks_by_size)).value == 7
